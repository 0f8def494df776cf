#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/registry.h>
#include <tapegrad/cpu/bf16_path.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tg::cpu {
namespace {
#ifdef __x86_64__
bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return kernel_level(Backend::cpu) >= 4 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) != 0;
}
bool has_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kTileState = 3u << 17;  // CPUID.7.EDX, XCR0
  constexpr long kRequestPermission = 0x1023, kTileData = 18;                    // of arch_prctl
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (kernel_level(Backend::cpu) < 4 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 ||
      (d & kTile) == 0)
    return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Multiply-adds per second of a burst of independent instructions of some 1 us. The best of several: the first is
// disturbed by the clock and by the units' waking up, others by interrupts.
template <class F> double rate(double multiply_adds, F burst) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto start = std::chrono::steady_clock::now();
    burst();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, multiply_adds / std::max(took.count(), 1e-9));
  }
  return best;
}
#define TG_TWELVE(instruction)                                                                                      \
  instruction "2\n\t" instruction "3\n\t" instruction "4\n\t" instruction "5\n\t" instruction "6\n\t" instruction   \
              "7\n\t" instruction "8\n\t" instruction "9\n\t" instruction "10\n\t" instruction "11\n\t" instruction \
              "12\n\t" instruction "13\n\t"
#define TG_CHANGED "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"
double f32_rate() {
  constexpr int kTimes = 300;
  return rate(kTimes * 12 * 16, [] {
    for (int i = 0; i < kTimes; ++i) asm volatile(TG_TWELVE("vfmadd231ps %%zmm0, %%zmm1, %%zmm")::: TG_CHANGED);
    asm volatile("vzeroupper");
  });
}
double avx512_rate() {
  constexpr int kTimes = 150;
  return rate(kTimes * 12 * 32, [] {
    for (int i = 0; i < kTimes; ++i) asm volatile(TG_TWELVE("vdpbf16ps %%zmm0, %%zmm1, %%zmm")::: TG_CHANGED);
    asm volatile("vzeroupper");
  });
}
double amx_rate() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  constexpr int kTimes = 40;
  const double r = rate(kTimes * 4 * 16 * 16 * 32, [] {
    for (int i = 0; i < kTimes; ++i)
      asm volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm6, %tmm4, %tmm1\n\t"
          "tdpbf16ps %tmm6, %tmm4, %tmm2\n\ttdpbf16ps %tmm6, %tmm4, %tmm3");
  });
  asm volatile("tilerelease");
  return r;
}
#undef TG_TWELVE
#undef TG_CHANGED
#else
bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
#endif

Bf16Path fastest() {
  Bf16Path best = Bf16Path::f32;
#ifdef __x86_64__
  if (!has(Bf16Path::avx512) && !has(Bf16Path::amx)) return best;
  double most = f32_rate();
  const auto consider = [&](Bf16Path path, double (*rate_of)()) {
    if (!has(path)) return;
    if (const double r = rate_of(); r > most) best = path, most = r;
  };
  consider(Bf16Path::avx512, avx512_rate);
  consider(Bf16Path::amx, amx_rate);
#endif
  return best;
}
}  // namespace

std::string_view name_of(Bf16Path path) {
  return path == Bf16Path::amx ? "amx" : path == Bf16Path::avx512 ? "avx512" : "f32";
}
bool has(Bf16Path path) {
  static const bool avx512 = has_avx512_bf16();
  if (path == Bf16Path::avx512) return avx512;
  if (path == Bf16Path::f32) return true;
  static const bool amx = has_amx();
  return amx;
}
Bf16Path bf16_path() {
  const char* wish = std::getenv("TG_BF16");  // read each time: tests set it
  if (!wish) {
    static const Bf16Path best = fastest();
    return best;
  }
  for (const Bf16Path path : kBf16Paths)
    if (name_of(path) == wish && has(path)) return path;
  std::string here;
  for (const Bf16Path path : kBf16Paths)
    if (has(path)) here += fmt::format("{}{}", here.empty() ? "" : ", ", name_of(path));
  detail::fail(Error::Kind::value,
               fmt::format("[matmul] TG_BF16 is '{}'. It names how products of bf16 are computed, of f32, avx512 and "
                           "amx; this machine has {}. Change or unset it.",
                           wish, here));
}
}  // namespace tg::cpu
