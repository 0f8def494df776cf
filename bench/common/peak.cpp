#include "common/peak.h"

#include "common/harness.h"

#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <new>
#include <random>
#include <thread>
#include <utility>

namespace tg::bench {
namespace {
using MultiplyAdd = double (*)(int64_t rounds);
using Stream = void (*)(float* to, const float* a, const float* b, int64_t n);
struct Streams {  // rates of plain and non-temporal stores
  Stream plain, streaming = nullptr;
};
struct Kernels {
  MultiplyAdd f32, f64;
  double flop_f32, flop_f64;  // indexed by round
  Streams copy, triad, update, scale, read;
};

#define TG_PEAK_NAME baseline
#define TG_PEAK_TARGET
#ifdef __x86_64__
#define TG_PEAK_STREAM "movntps"
#endif
#define TG_PEAK_WIDTH 16
#define TG_PEAK_CHAINS 12
#include "common/peak_kernels.h"
#ifdef __x86_64__
#define TG_PEAK_NAME level3
#define TG_PEAK_TARGET __attribute__((target("avx2,fma")))
#define TG_PEAK_STREAM "vmovntps"
#define TG_PEAK_WIDTH 32
#define TG_PEAK_CHAINS 12
#include "common/peak_kernels.h"
#define TG_PEAK_NAME level4
#define TG_PEAK_TARGET __attribute__((target("avx512f")))
#define TG_PEAK_STREAM "vmovntps"
#define TG_PEAK_WIDTH 64
#define TG_PEAK_CHAINS 16
#include "common/peak_kernels.h"
#endif

// bf16 and int8 by the kernels' instructions; without them at f32's rate (bf16 is widened).
#ifdef __x86_64__
#define TG_TILES(instruction)                                                                              \
  struct alignas(64) {                                                                                     \
    uint8_t palette = 1, start_row = 0, reserved[14] = {};                                                 \
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};                                                 \
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};                                                   \
  } const shapes;                                                                                          \
  alignas(64) bf16 data[16 * 32]; /* not zeros, by which processors save power */                          \
  for (int i = 0; i < 16 * 32; ++i) data[i] = bf16(1e-3f * float(i % 97 - 48));                            \
  asm volatile(                                                                                            \
      "ldtilecfg %0\n\ttileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5\n\t"                     \
      "tileloadd (%1,%2,1), %%tmm6\n\ttileloadd (%1,%2,1), %%tmm7" ::"m"(shapes),                          \
      "r"(data), "r"(int64_t(64))                                                                          \
      : "memory");                                                                                         \
  for (; n > 0; --n)                                                                                       \
    asm volatile(instruction " %tmm6, %tmm4, %tmm0\n\t" instruction " %tmm7, %tmm4, %tmm1\n\t" instruction \
                             " %tmm6, %tmm5, %tmm2\n\t" instruction " %tmm7, %tmm5, %tmm3");               \
  asm volatile("tilerelease");                                                                             \
  return 0
double amx_products(int64_t n) { TG_TILES("tdpbf16ps"); }
double amx_int8(int64_t n) { TG_TILES("tdpbssd"); }
#undef TG_TILES
// Twelve independent register instructions, with adds between where multiply and add are separate.
#define TG_TWELVE(instruction)                                                                                       \
  for (; n > 0; --n)                                                                                                 \
    asm volatile(instruction "2\n\t" instruction "3\n\t" instruction "4\n\t" instruction "5\n\t" instruction         \
                             "6\n\t" instruction "7\n\t" instruction "8\n\t" instruction "9\n\t" instruction         \
                             "10\n\t" instruction "11\n\t" instruction "12\n\t" instruction "13" ::                  \
                                 : "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
                                   "xmm12", "xmm13", "xmm14");                                                       \
  asm volatile("vzeroupper");                                                                                        \
  return 0
double avx512_products(int64_t n) { TG_TWELVE("vdpbf16ps %%zmm0, %%zmm1, %%zmm"); }
double avx512_int8(int64_t n) { TG_TWELVE("vpdpbusd %%zmm0, %%zmm1, %%zmm"); }
double vex_int8(int64_t n) { TG_TWELVE("%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm"); }
double avx2_int8(int64_t n) { TG_TWELVE("vpmaddwd %%ymm0, %%ymm1, %%ymm14\n\tvpaddd %%ymm14, %%ymm0, %%ymm"); }
#undef TG_TWELVE
#endif

const Kernels& kernels() {
#ifdef __x86_64__
  if (detail::isa_level() >= 4) return level4::kKernels;
  if (detail::isa_level() >= 3) return level3::kKernels;
#endif
  return baseline::kKernels;
}

// Seconds from the first start of f(thread) to the last end; all threads start together.
template <class F> double on_all_threads(F f) {
  const int n = num_threads();
  std::atomic<int> waiting = n;
  std::vector<double> begin(static_cast<size_t>(n)), end(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int t = 0; t < n; ++t)
    threads.emplace_back([&, t] {
      auto prepared = f(t);
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      begin[size_t(t)] = now();
      prepared();
      end[size_t(t)] = now();
    });
  for (auto& t : threads) t.join();
  return *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
}
// Second highest rate: a clock jump makes a round look too fast.
class SecondHighest {
 public:
  void add(double rate) {
    if (rate > first_) std::swap(rate, first_);
    second_ = std::max(second_, rate);
  }
  double operator()() const { return second_; }

 private:
  double first_ = 0, second_ = 0;
};
// The best rate of `once(repeats)`, which returns its seconds, in `total` seconds. Short rounds fit between the time
// slices of other work.
template <class Once> double best_rate(double work, double total, Once once) {
  constexpr double kRound = 1e-3;
  constexpr int kLeast = 5;
  int64_t repeats = 1;
  for (double took; (took = std::min(once(repeats), once(repeats))) < kRound;)
    repeats = std::max(2 * repeats, int64_t(0.8 * double(repeats) * kRound / std::max(took, 1e-9)));
  SecondHighest rate;
  const auto start = now();
  for (int i = 0; i < kLeast || now() - start < total; ++i) rate.add(work * double(repeats) / once(repeats));
  return rate();
}

// Sum of each thread's second best round: threads share nothing, so rounds need not coincide.
double multiply_add_rate(MultiplyAdd f, double flop, double total) {
  constexpr double kRound = 2e-4;
  constexpr int kLeast = 20;
  std::atomic<double> rate = 0, sink;  // sink: keeps the loops alive
  on_all_threads([&](int) {
    return [&] {
      const auto timed = [&](int64_t n) { return bench::timed([&] { sink = f(n); }); };
      int64_t n = 1000;
      while (std::min(timed(n), timed(n)) < kRound) n *= 2;
      SecondHighest own;
      const auto start = now();
      for (int i = 0; i < kLeast || now() - start < total; ++i) own.add(1e-9 * flop * double(n) / timed(n));
      rate += own();
    };
  });
  return rate;
}

double bf16_rate(double total) {
#ifdef __x86_64__
  const std::string machine = detail::runtime_of(Device::cpu()).describe(0);  // says which its GEMMs use
  if (machine.ends_with("bf16 by AMX")) return multiply_add_rate(amx_products, 4 * 2.0 * 16 * 16 * 32, total);
  if (machine.ends_with("bf16 by AVX512_BF16")) return multiply_add_rate(avx512_products, 12 * 2.0 * 32, total);
#endif
  return multiply_add_rate(kernels().f32, kernels().flop_f32, total);
}

double int8_rate(double total) {
#ifdef __x86_64__
  const std::string machine = detail::runtime_of(Device::cpu()).describe(0);
  const auto by = [&](const char* what) { return machine.find(what) != std::string::npos; };
  if (by("int8 by AMX")) return multiply_add_rate(amx_int8, 4 * 2.0 * 16 * 16 * 64, total);
  if (by("int8 by AVX512_VNNI")) return multiply_add_rate(avx512_int8, 12 * 2.0 * 64, total);
  if (by("int8 by AVX_VNNI")) return multiply_add_rate(vex_int8, 12 * 2.0 * 32, total);
  if (detail::kernel_level(Backend::cpu) >= 3) return multiply_add_rate(avx2_int8, 12 * 2.0 * 16, total);
#endif
  return multiply_add_rate(kernels().f32, kernels().flop_f32, total);
}

class Array {
 public:
  explicit Array(int64_t n) : p_(new(kAlign) float[size_t(n)]) {
#ifdef __linux__
    (void)madvise(p_, size_t(n) * sizeof(float), MADV_HUGEPAGE);  // huge pages, like the CPU's tensors
#endif
    std::fill_n(p_, n, 1.0f);
  }
  ~Array() { ::operator delete[](p_, kAlign); }
  Array(Array&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  float* get() const { return p_; }

 private:
  static constexpr std::align_val_t kAlign{2 << 20};
  float* p_;
};
// `arrays` arrays take `bytes` over all threads; a pass moves `moves` arrays. The faster of plain and non-temporal
// stores.
double stream_rate(const Streams& ways, int arrays, int moves, int64_t bytes, double total) {
  const int64_t n = bytes / num_threads() / arrays / int64_t(sizeof(float)) / 16 * 16;
  const double moved = 1e-9 * double(n) * sizeof(float) * moves * num_threads();
  std::vector<std::vector<Array>> all(static_cast<size_t>(num_threads()));  // one per thread, for first touch
  const auto rate = [&](Stream f) {
    return best_rate(moved, total, [&](int64_t passes) {
      return on_all_threads([&](int thread) {
        std::vector<Array>& own = all[size_t(thread)];
        while (own.size() < 3) own.emplace_back(own.size() < 2 || arrays == 3 ? n : 16);
        return [=, to = own[0].get(), a = own[1].get(), b = own[2].get()] {
          for (int64_t i = 0; i < passes; ++i) {
            f(to, a, b, n);
            asm volatile("" ::: "memory");  // prevents removal of a pass
          }
        };
      });
    });
  };
  return ways.streaming ? std::max(rate(ways.plain), rate(ways.streaming)) : rate(ways.plain);
}
struct alignas(64) Line {
  const Line* next;
};
// Nanoseconds per load of the next address: a random cycle through all lines (Sattolo).
double load_latency(int64_t bytes, double total) {
  constexpr int64_t kLoads = 1000;
  const int64_t n = bytes / int64_t(sizeof(Line));
  const Array array(bytes / int64_t(sizeof(float)));
  Line* const lines = reinterpret_cast<Line*>(array.get());
  std::minstd_rand random(1);
  for (int64_t i = 0; i < n; ++i) lines[i].next = lines + i;
  for (int64_t i = n - 1; i > 0; --i) std::swap(lines[i].next, lines[int64_t(random()) % i].next);
  const Line* at = lines;
  return 1e9 / best_rate(double(kLoads), total, [&](int64_t repeats) {
           return timed([&] {
             for (int64_t left = repeats * kLoads; left > 0; --left) {
               at = at->next;
               asm volatile("" : "+r"(at));
             }
           });
         });
}
}  // namespace

double Peaks::gflops(const std::string& operands) {
  const auto known = gflops_.find(operands);
  if (known != gflops_.end()) return known->second;
  const Kernels& k = kernels();
  const bool f64 = operands == "f64";
  return gflops_[operands] = device_ != Device::cpu() ? device_product_rate(device_, operands, seconds_)
                             : operands == "bf16"     ? bf16_rate(seconds_)
                             : operands == "i8"       ? int8_rate(seconds_)
                             : f64                    ? multiply_add_rate(k.f64, k.flop_f64, seconds_)
                                                      : multiply_add_rate(k.f32, k.flop_f32, seconds_);
}
Bandwidth Peaks::bandwidth(double bytes) {
  const double smallest = double(num_threads()) * (16 << 10);
  const auto size = int64_t(std::exp2(std::round(std::log2(std::clamp(bytes, smallest, 0x1p29)))));
  const auto known = bandwidths_.find(size);
  if (known != bandwidths_.end()) return known->second;
  if (device_ != Device::cpu()) {
    const double copy = device_copy_rate(device_, size, seconds_);
    return bandwidths_[size] = {copy, copy, copy, copy, 0};
  }
  const Kernels& k = kernels();
  const auto by = [&](const Streams& s, int arrays, int moves) {
    return stream_rate(s, arrays, moves, size, seconds_);
  };
  return bandwidths_[size] = {by(k.copy, 2, 2), by(k.triad, 3, 3), std::max(by(k.update, 2, 3), by(k.scale, 1, 2)),
                              by(k.read, 1, 1), load_latency(size / num_threads(), seconds_)};
}
std::vector<std::pair<std::string, double>> Peaks::levels() const {
  std::vector<std::pair<std::string, double>> levels;
  double kib[4] = {};
  const double threads = num_threads();
  for (const auto& [name, at] : {std::pair("L1", 0), std::pair("L2", 2), std::pair("L3", 3)})
    if (device_ == Device::cpu() &&
        std::ifstream("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(at) + "/size") >> kib[at])
      // L3: more than the threads' L2.
      levels.emplace_back(name, 512 * (at < 3 ? kib[at] * threads : std::max(kib[3], 4 * kib[2] * threads)));
  levels.emplace_back("memory", 0x1p29);
  return levels;
}

}  // namespace tg::bench
