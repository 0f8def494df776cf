// cuBLASLt is column-major: out = a b is its out^T = b^T a^T, so its A is our b, its B our a, and m and n are swapped.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_file.h>
#include <tapegrad/cuda/gemm/gemm_plan.h>
#include <tapegrad/cuda/gemm/measure.h>
#include <tapegrad/cuda/gemm/plain_product.h>
#include <tapegrad/cuda/runtime/recording.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <optional>

namespace tg::cuda {
namespace {

// A part of a GEMM that exceeds cuBLASLt's sizes; later parts of k accumulate.
struct Part : Gemm {
  int64_t ldd = 0;
  bool accumulate = false;
};

uint8_t alignment(const void* p) {
  return p ? key_alignment(std::countr_zero(reinterpret_cast<uintptr_t>(p))) : uint8_t(0);
}
GemmKey key_of(const Part& g) {
  GemmKey k;
  k.m = g.n;
  k.n = g.m;
  k.k = g.k;
  k.batch = g.batch;
  k.lda = g.b.ld;
  k.ldb = g.a.ld;
  k.ldd = g.ldd;
  if (g.batch > 1) {
    k.stride_a = g.b.stride;
    k.stride_b = g.a.stride;
    k.stride_d = g.out_stride;
  }
  k.dtype = g.dtype;
  if (g.dtype == DType::f32) k.products = g.products;
  k.trans_a = g.b.transposed;
  k.trans_b = g.a.transposed;
  k.bias = g.bias != nullptr;
  k.align_a = alignment(g.b.data);
  k.align_b = alignment(g.a.data);
  k.align_d = alignment(g.out);
  k.align_bias = alignment(g.bias);
  return k;
}

class Gemms {
 public:
  Gemms(int device, GemmOptions o) : device_(device) { reset(std::move(o)); }

  void reset(GemmOptions o) {
    const std::lock_guard lock(mutex_);
    recent_.clear();
    plans_.clear();
    file_.reset();
    stats_ = {};
    options_ = std::move(o);
  }
  GemmStats stats() {
    const std::lock_guard lock(mutex_);
    stats_.held = plans_.size();
    return stats_;
  }
  void run(const Context& c, Part g) {
    const std::lock_guard lock(mutex_);
    open(c.op);
    if (by_library(c, g)) return;
    // The bias may be the reason. Then it becomes the first term of the sums, rounded once with them.
    if (g.bias) {
      fill_rows(c, g, g.ldd);
      g.bias = nullptr, g.accumulate = true;
      if (by_library(c, g)) return;
    }
    if (++stats_.plain == 1)
      fmt::print(stderr,
                 "tapegrad: [gemm] cuBLASLt has no algorithm for {}. A plain kernel, which is slow, computes it and "
                 "any other without an algorithm.\n",
                 describe(key_of(g)));
    plain_product(c, g, g.ldd, g.accumulate);
  }

 private:
  using Recent = std::list<std::pair<GemmKey, GemmPlan>>;  // latest first
  int device_;
  std::mutex mutex_;
  GemmOptions options_;
  LtHandle handle_;
  std::map<cudaStream_t, void*> workspaces_;  // leaked: kernels may use them until exit
  Recent recent_;
  std::unordered_map<GemmKey, Recent::iterator, GemmKeyHash> plans_;
  std::optional<GemmFile> file_;
  GemmStats stats_;

  void open(std::string_view op) {
    if (!handle_) {
      cublasLtHandle_t h = nullptr;
      check_lt(cublasLtCreate(&h), op, "starting the library");
      handle_.reset(h);
    }
    if (file_) return;
    const std::string& path = options_.file;
    TG_CHECK(path.empty() || options_.autotune || std::filesystem::exists(path), io,
             "[gemm] the file of measured algorithms '{}' does not exist. Choose another with TG_GEMM_CACHE, or make "
             "it with TG_AUTOTUNE=1.",
             path);
    const auto shipped = options_.autotune ? std::span<const std::string_view>() : options_.shipped;
    GemmFile f(path, properties(device_).name, shipped);
    stats_.foreign = f.foreign();
    const std::string here = fmt::format("'{}' with {}", properties(device_).name, cublasLtGetVersion());
    if (f.foreign())
      fmt::print(
          stderr,
          "tapegrad: [gemm] {} algorithms in '{}' are for another GPU or version of cuBLASLt than {}: not used.\n",
          f.foreign(), path, here);
    if (f.size() == 0 && !shipped.empty())
      fmt::print(stderr,
                 "tapegrad: [gemm] the measured algorithms of this build are for other GPUs or versions of cuBLASLt "
                 "than {}: not used. TG_AUTOTUNE=1 and TG_GEMM_CACHE=FILE measure those that are needed here.\n",
                 here);
    file_.emplace(std::move(f));
  }
  void* workspace(cudaStream_t stream, std::string_view op) {
    void*& p = workspaces_[stream];
    if (p) return p;
    if (cudaMalloc(&p, kGemmWorkspace) == cudaSuccess) return p;
    (void)cudaGetLastError();
    p = nullptr;
    empty_cache({Backend::cuda, int8_t(device_)});
    check(cudaMalloc(&p, kGemmWorkspace), op, "allocating the workspace of matrix products");
    return p;
  }
  bool by_library(const Context& c, const Part& g) {
    const cudaStream_t stream = stream_of(device_);
    const HeldMemory* const held = held_memory();
    std::optional<Scratch> concurrent;  // branches of a recording may run concurrently
    if (held && held->concurrent()) concurrent.emplace(c, kGemmWorkspace);
    void* const space = concurrent ? concurrent->as<void>() : workspace(held ? held->order() : stream, c.op);
    const GemmPointers p{g.b.data, g.a.data, g.bias, g.out, space, g.accumulate};
    if (!plan(c, key_of(g), p, stream).run(p, stream, c.op)) return false;
    ++stats_.products;
    return true;
  }
  GemmPlan& plan(const Context& c, const GemmKey& key, const GemmPointers& p, cudaStream_t stream) {
    if (const auto it = plans_.find(key); it != plans_.end()) {
      ++stats_.hits;
      recent_.splice(recent_.begin(), recent_, it->second);
      return it->second->second;
    }
    GemmPlan fresh(handle_.get(), key, p.bias, c.op);
    choose(c, fresh, key, p, stream);
    if (plans_.size() >= std::max<size_t>(options_.plans, 1)) {
      plans_.erase(recent_.back().first);
      recent_.pop_back();
    }
    recent_.emplace_front(key, std::move(fresh));
    plans_[key] = recent_.begin();
    return recent_.front().second;
  }
  void choose(const Context& c, GemmPlan& plan, const GemmKey& key, const GemmPointers& p, cudaStream_t stream) {
    if (const auto* known = file_->find(key)) {
      if (plan.adopt(known->algorithm)) {
        ++stats_.from_file;
        return;
      }
      if (!known->shipped) file_->damaged("the library refuses the algorithm for " + describe(key));
    }
    if (!options_.autotune || plan.candidates().empty() || p.accumulate || !may_measure(stream, c.op)) return;
    const double us = measure(c, plan, key, p, stream);
    if (us == 0) return;  // cuBLASLt refuses all candidates
    ++stats_.timed;
    file_->add(key, {plan.algorithm(), us});
  }
};

// Times differ from run to run; without a file, so would the bits.
void check_tuning(const GemmOptions& o) {
  TG_CHECK(!o.autotune || !o.file.empty(), value,
           "[gemm] TG_AUTOTUNE=1 measures algorithms, and there is no file to keep them in. Results would differ from "
           "run to run. Set TG_GEMM_CACHE=FILE: later runs use its algorithms.");
}
GemmOptions options_from_environment() {
  GemmOptions o;
  const char *tune = std::getenv("TG_AUTOTUNE"), *file = std::getenv("TG_GEMM_CACHE");
  o.autotune = tune && *tune && std::string_view(tune) != "0";
  if (file) o.file = file;
  check_tuning(o);
  return o;
}
struct All {
  std::mutex mutex;
  GemmOptions options = options_from_environment();
  std::map<int, std::unique_ptr<Gemms>> devices;
};
All& all() {  // leaked
  static auto& a = *new All;
  return a;
}
Gemms& gemms(int device) {
  All& a = all();
  const std::lock_guard lock(a.mutex);
  auto& g = a.devices[device];
  if (!g) g = std::make_unique<Gemms>(device, a.options);
  return *g;
}

const void* advance(const void* p, int64_t elements, DType t) {
  return p ? static_cast<const std::byte*>(p) + elements * int64_t(size_of(t)) : nullptr;
}
GemmOperand advance(GemmOperand x, int64_t row, int64_t column, int64_t matrix, DType t) {
  if (x.transposed) std::swap(row, column);
  x.data = advance(x.data, matrix * x.stride + row * x.ld + column, t);
  return x;
}
DType result_of(DType t) { return t == DType::i8 ? DType::i32 : t; }
template <class F> void for_chunks(int64_t n, int64_t step, F&& f) {
  for (int64_t at = 0; at < n; at += step) f(at, std::min(step, n - at));
}

}  // namespace

GemmOptions gemm_options() {
  All& a = all();
  const std::lock_guard lock(a.mutex);
  return a.options;
}
void set_gemm_options(const GemmOptions& o) {
  TG_CHECK(o.plans > 0 && o.largest > 0 && o.largest_batch > 0, value,
           "[gemm] options of {} plans, sizes up to {} and batches up to {}. Each must be 1 or more.", o.plans,
           o.largest, o.largest_batch);
  check_tuning(o);
  All& a = all();
  const std::lock_guard lock(a.mutex);
  a.options = o;
  for (auto& [device, g] : a.devices) g->reset(o);
}
GemmStats gemm_stats(int device) { return gemms(device).stats(); }

void gemm(const Context& c, const Gemm& g) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.k == 0) {
    check(
        cudaMemsetAsync(g.out, 0, size_t(g.batch * g.m * g.n) * size_of(result_of(g.dtype)), stream_of(c.device.index)),
        c.op, "writing zeros");
    return;
  }
  const GemmOptions o = gemm_options();
  Gemms& device = gemms(c.device.index);
  Part part{g};
  part.ldd = g.n;
  // cuBLASLt 13.1 refuses larger n, our m, for int8.
  const int64_t most_rows = g.dtype == DType::i8 ? std::min<int64_t>(o.largest, 65536) : o.largest;
  for_chunks(g.batch, o.largest_batch, [&](int64_t batch, int64_t matrices) {
    for_chunks(g.m, most_rows, [&](int64_t row, int64_t rows) {
      for_chunks(g.n, o.largest, [&](int64_t column, int64_t columns) {
        for_chunks(g.k, o.largest, [&](int64_t k, int64_t terms) {
          part.batch = matrices, part.m = rows, part.n = columns, part.k = terms;
          part.a = advance(g.a, row, k, batch, g.dtype);
          part.b = advance(g.b, k, column, batch, g.dtype);
          part.bias = k == 0 ? advance(g.bias, column, g.dtype) : nullptr;
          part.out =
              const_cast<void*>(advance(g.out, batch * g.out_stride + row * part.ldd + column, result_of(g.dtype)));
          part.accumulate = k > 0;
          device.run(c, part);
        });
      });
    });
  });
  launched(c);
}

}  // namespace tg::cuda
