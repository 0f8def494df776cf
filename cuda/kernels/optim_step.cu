#include <tapegrad/cuda/device/multi_tensor.h>
#include <tapegrad/cuda/device/step_values.h>
#include <tapegrad/ops/training/optim_math.h>

#include <cmath>
#include <deque>
#include <limits>
#include <tuple>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// --- the norm of all gradients
struct Gradient {
  const void* data;
  int64_t n;
  DType dtype;
};
constexpr int kNormCtas = 5;  // blocks per SM

// [begin, end) starts 16-byte aligned in the tensor.
template <class T> __device__ __forceinline__ double square_sum(const void* data, int64_t begin, int64_t end) {
  constexpr int V = kVec<T>;
  const T* x = static_cast<const T*>(data);
  double sum = 0;
  int64_t scalars = begin;
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    scalars = begin + (end - begin) / V * V;
    for (int64_t i = begin + int64_t(threadIdx.x) * V; i < scalars; i += int64_t(kThreads) * V) {
      const auto v = load16(x + i);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += double(widen(v.x[k])) * double(widen(v.x[k]));
    }
  }
  for (int64_t i = scalars + threadIdx.x; i < end; i += kThreads) sum += double(widen(x[i])) * double(widen(x[i]));
  return sum;
}
template <int kMost>
__global__ void __launch_bounds__(kThreads, kNormCtas)
    square_sums_all(const __grid_constant__ Batch<Gradient, kMost> batch, double* sums) {
  const int64_t c = blockIdx.x;
  const int k = batch.find(c);
  const Gradient& g = batch.item[k];
  const int64_t begin = (c - batch.first[k]) * batch.chunk, end = std::min(g.n, begin + batch.chunk);
  double sum;
  if (g.dtype == DType::f32)
    sum = square_sum<float>(g.data, begin, end);
  else if (g.dtype == DType::bf16)
    sum = square_sum<bf16>(g.data, begin, end);
  else
    sum = square_sum<double>(g.data, begin, end);
  sum = block_all<SumOp, kThreads>(sum, 0.0);
  if (threadIdx.x == 0) sums[c] = sum;
}
void square_sums(const op::SquareSums&, Bufs in, Bufs out, Context& c) {
  constexpr int kMany = 512;
  static_assert(sizeof(Batch<Gradient, kMany>) + sizeof(double*) <= kMostParameters);
  std::vector<Gradient> all;
  std::deque<Contiguous> data;
  for (const Buf& x : in) all.push_back({data.emplace_back(c, x).data(), x.numel(), x.dtype()});
  auto* sums = out[0].data<double>();
  for_batches<Gradient, kMany>(all, op::SquareSums::kSegment, [&]<int kMost>(const Batch<Gradient, kMost>& b, size_t) {
    launch(c, square_sums_all<kMost>, unsigned(b.chunks()), kThreads, 0, b, sums);
    sums += b.chunks();
  });
}

template <class T> __global__ void __launch_bounds__(kThreads) norm_of_sums(const double* sums, int64_t n, T* norm) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += sums[i];
  sum = block_all<SumOp, kThreads>(sum, 0.0);
  if (threadIdx.x == 0) *norm = T(sqrt(sum));
}
void norm_of_square_sums(const op::NormOfSquareSums&, Bufs in, Bufs out, Context& c) {
  const auto run = [&]<class T>(T* norm) {
    launch(c, norm_of_sums<T>, 1, kThreads, 0, static_cast<const double*>(in[0].data<double>()), in[0].numel(), norm);
  };
  out[0].dtype() == DType::f64 ? run(out[0].data<double>()) : run(out[0].data<float>());
}

// --- steps
// Gradient clipping; off if both norms are null.
struct Clip {
  const double* wide = nullptr;
  const float* narrow = nullptr;
  double max_norm;
  bool skip_non_finite;

  template <class Op>
  Clip(const Op& op, Bufs in, size_t lists) : max_norm(op.max_norm), skip_non_finite(op.o.skip_non_finite) {
    if (in.size() > lists)
      in[lists].dtype() == DType::f64 ? void(wide = in[lists].data<double>()) : void(narrow = in[lists].data<float>());
  }
  template <class T> struct Factor {
    T of_gradient;
    bool skip;  // skip: nothing changes
  };
  template <class T> __device__ __forceinline__ Factor<T> factor() const {
    if (!wide && !narrow) return {T(1), false};
    const double norm = wide ? *wide : double(*narrow), c = max_norm / (norm + 1e-6);
    return {T(c > 1 ? 1 : c),  // NaN stays visible
            skip_non_finite && !(norm < std::numeric_limits<double>::infinity())};
  }
};
// kLists updated lists, and the gradient in T or bf16. W: type of the first list, M: of the others.
template <class T, int kLists_, class M = T, class W = T> struct StepTensor {
  using Type = T;
  static constexpr int kLists = kLists_;
  static constexpr bool kSplits = !std::is_same_v<T, W>, kRounds = !std::is_same_v<T, M>;
  static constexpr bool kCopies = sizeof(T) == 4 && !kSplits;
  const void* in[kLists];
  void* out[kLists];  // may alias the inputs
  const void* grad;
  std::conditional_t<kSplits, uint16_t, bf16>* copy;  // updated in[0], or low bits; may be null
  int64_t n;
  bool narrow;  // bf16 gradient

  static bool has(Bufs out, size_t n, size_t k) {
    return out[k].dtype() == dtype_of<W>() && (kLists == 1 || out[n + k].dtype() == dtype_of<M>());
  }
  template <int V> __device__ __forceinline__ Vec<T, V> load(int i, int64_t at) const {
    Vec<T, V> wide;
    if constexpr (!kSplits) {
      if (i == 0) return load16<V>(static_cast<const T*>(in[i]) + at);
    } else if (i == 0) {
      const auto high = load16<V>(static_cast<const W*>(in[i]) + at);
      const auto bits = load16<V>(copy + at);
#pragma unroll
      for (int k = 0; k < V; ++k) wide.x[k] = op::join(high.x[k], bits.x[k]);
      return wide;
    }
    const auto x = load16<V>(static_cast<const M*>(in[i]) + at);
#pragma unroll
    for (int k = 0; k < V; ++k) wide.x[k] = widen(x.x[k]);
    return wide;
  }
  template <int V>
  __device__ __forceinline__ void store(int i, int64_t at, const Vec<T, V>& x, const uint32_t (&random)[V]) const {
    if constexpr (!kSplits) {
      if (i == 0) return store16_streaming(static_cast<T*>(out[i]) + at, x);
    } else if (i == 0) {
      Vec<W, V> high;
      Vec<uint16_t, V> bits;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const op::SplitWeight s = op::split(x.x[k]);
        high.x[k] = s.high, bits.x[k] = s.low;
      }
      store16_streaming(copy + at, bits);
      return store16_streaming(static_cast<W*>(out[i]) + at, high);
    }
    Vec<M, V> y;
#pragma unroll
    for (int k = 0; k < V; ++k)
      if constexpr (kRounds)
        y.x[k] = op::stochastic_bf16(x.x[k], i == 1 ? random[k] : random[k] >> 16);
      else
        y.x[k] = x.x[k];
    store16_streaming(static_cast<M*>(out[i]) + at, y);
  }
  __host__ __device__ __forceinline__ bool aligned() const {
    auto bits = (reinterpret_cast<uintptr_t>(in[0]) | reinterpret_cast<uintptr_t>(out[0])) * (sizeof(T) / sizeof(W));
    if constexpr (kCopies || kSplits) bits |= reinterpret_cast<uintptr_t>(copy) * 2;  // vectors of half the bytes
    for (int i = 1; i < kLists; ++i)
      bits |= (reinterpret_cast<uintptr_t>(in[i]) | reinterpret_cast<uintptr_t>(out[i])) * (sizeof(T) / sizeof(M));
    return bits % 16 == 0;
  }
};
template <class T, class M = T, class W = T> struct AdamW : StepTensor<T, 3, M, W>, op::AdamWNumbers<T> {
  static constexpr int kCtas = sizeof(T) == 8 ? 3 : 4;  // blocks per SM
  int64_t first = 0;                                    // position in the weight
  AdamW() = default;
  AdamW(const op::AdamWAttributes& op, size_t k) : op::AdamWNumbers<T>(op, op.each[k]) {
    if (!op.first.empty()) first = op.first[k];
  }
  __device__ __forceinline__ void step(const Clip::Factor<T>& clip, const typename AdamW::Now& s, T (&x)[3],
                                       T grad) const {
    if (clip.skip) return;
    this->template update<AdamW::kRounds>(s, this->decay(s), clip.of_gradient, grad, x[0], x[1], x[2]);
  }
};
template <class T, bool kMomentum> struct Sgd : StepTensor<T, kMomentum ? 2 : 1>, op::SgdNumbers<T> {
  static constexpr int kCtas = sizeof(T) == 8 ? 3 : 4;  // blocks per SM
  bool nesterov;
  Sgd() = default;
  Sgd(const op::SgdStep& op, size_t k) : op::SgdNumbers<T>(op, op.each[k]), nesterov(op.o.nesterov) {}
  __device__ __forceinline__ void step(const Clip::Factor<T>& clip, const typename Sgd::Now& s,
                                       T (&x)[kMomentum ? 2 : 1], T grad) const {
    if (clip.skip) return;
    T& w = x[0];
    T g = grad * clip.of_gradient + this->decay * w;
    if constexpr (kMomentum) {
      T& b = x[1];
      b = s.keep * b + s.take * g;
      g = nesterov ? g + this->momentum * b : b;
    }
    w -= s.rate * g;
  }
};
template <int V, class Entry, class T = typename Entry::Type>
__device__ __forceinline__ void step_at(const Entry& t, const Clip::Factor<T>& clip, const typename Entry::Now& now,
                                        int64_t at, const T (&g)[V]) {
  constexpr int kLists = Entry::kLists;
  Vec<T, V> x[kLists];
  uint32_t random[V];
#pragma unroll
  for (int i = 0; i < kLists; ++i) x[i] = t.template load<V>(i, at);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    T one[kLists];
#pragma unroll
    for (int i = 0; i < kLists; ++i) one[i] = x[i].x[k];
    t.step(clip, now, one, g[k]);
#pragma unroll
    for (int i = 0; i < kLists; ++i) x[i].x[k] = one[i];
    if constexpr (Entry::kRounds) random[k] = op::rounding_word(now.key, uint32_t(t.first + at) + k);
  }
#pragma unroll
  for (int i = 0; i < kLists; ++i) t.store(i, at, x[i], random);
  if constexpr (Entry::kCopies)
    if (t.copy) {
      Vec<bf16, V> narrow;
#pragma unroll
      for (int k = 0; k < V; ++k) narrow.x[k] = bf16(x[0].x[k]);
      store16_streaming(t.copy + at, narrow);
    }
}
template <int V, class G, class Entry, class T = typename Entry::Type>
__device__ __forceinline__ void step_by(const Entry& t, const Clip::Factor<T>& clip, const typename Entry::Now& now,
                                        int64_t at) {
  const auto grad = load16<V>(static_cast<const G*>(t.grad) + at);
  T g[V];
#pragma unroll
  for (int k = 0; k < V; ++k) g[k] = T(widen(grad.x[k]));
  step_at(t, clip, now, at, g);
}
// Uses vectors if all pointers are aligned.
template <class G, class Entry, class T = typename Entry::Type>
__device__ __forceinline__ void step_chunk(const Entry& t, const Clip::Factor<T>& clip, const typename Entry::Now& now,
                                           int64_t begin, int n) {
  constexpr int V = kVec<T>;
  const int scalars = t.aligned() && reinterpret_cast<uintptr_t>(t.grad) % 16 == 0 ? n / V * V : 0;
  for (int i = int(threadIdx.x) * V; i < scalars; i += kThreads * V) step_by<V, G>(t, clip, now, begin + i);
  for (int i = scalars + int(threadIdx.x); i < n; i += kThreads) step_by<1, G>(t, clip, now, begin + i);
}
// recorded: step values in device memory, captured in a CUDA graph; null: entries hold `now`.
template <class Entry, int kMost>
__global__ void __launch_bounds__(kThreads, Entry::kCtas)
    optim_step_all(const __grid_constant__ Batch<Entry, kMost> batch, int64_t chunks, const __grid_constant__ Clip clip,
                   const typename Entry::Now* recorded) {
  using T = typename Entry::Type;
  const auto factor = clip.factor<T>();
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int k = batch.find(c);
    const Entry& t = batch.item[k];
    const typename Entry::Now now = recorded ? recorded[k] : t.now;
    const int64_t begin = (c - batch.first[k]) * batch.chunk;  // a multiple of 16 bytes
    const int n = int(std::min(t.n - begin, batch.chunk));
    if constexpr (std::is_same_v<T, float>) {
      if (t.narrow) {
        step_chunk<bf16>(t, factor, now, begin, n);
        continue;
      }
    }
    step_chunk<T>(t, factor, now, begin, n);
  }
}
template <class Entry> struct Entries {
  using T = typename Entry::Type;
  std::deque<Contiguous> dense;
  std::vector<Entry> all;
  std::vector<size_t> places;

  template <class Op> Entries(const Op& op, Bufs in, Bufs out, const Context& c) {
    const size_t n = op.tensors();
    const size_t low = Entry::kLists * n;
    const Bufs copies = out.subspan(low + op.split.size()), grads = in.subspan(out.size());
    std::vector<bf16*> copy(n);
    if constexpr (Entry::kCopies)
      for (size_t j = 0; j < copies.size(); ++j) copy[op.copied[j]] = copies[j].template data<bf16>();
    for (size_t k = 0; k < n; ++k) {
      if (!Entry::has(out, n, k) || out[k].numel() == 0) continue;
      places.push_back(k);
      Entry& e = all.emplace_back(op, k);
      const auto at = [&](const Buf& b) { return dense.emplace_back(c, b).data(); };
      for (size_t i = 0; i < Entry::kLists; ++i) {
        e.in[i] = at(in[i * n + k]);
        e.out[i] = first_element(out[i * n + k]);
      }
      if constexpr (Entry::kSplits)
        e.copy = out[low + size_t(std::ranges::lower_bound(op.split, k) - op.split.begin())].template data<uint16_t>();
      else
        e.copy = copy[k];
      e.grad = at(grads[k]), e.narrow = grads[k].dtype() != dtype_of<T>();
      e.n = out[k].numel();
    }
  }
  template <class Op> void step(const Op& op, const Clip& clip, const Context& c) const {
    using Now = typename Entry::Now;
    constexpr size_t kRest = 2 * sizeof(int64_t) + sizeof(int64_t) + sizeof(Clip) + sizeof(Now*);
    constexpr int kMany = int(std::min<size_t>(200, (kMostParameters - kRest) / (sizeof(Entry) + sizeof(int64_t))));
    static_assert(sizeof(Batch<Entry, kMany>) + sizeof(int64_t) + sizeof(Clip) + sizeof(Now*) <= kMostParameters);
    if (all.empty()) return;
    const Now* const recorded = step_values<Now>(op, all.size(), [places = places](const Op& now, Now* to) {
      for (const size_t k : places) *to++ = Entry(now, k).now;
    });
    for_batches<Entry, kMany>(all, batch_chunk(all), [&]<int kMost>(const Batch<Entry, kMost>& b, size_t first) {
      launch(c, optim_step_all<Entry, kMost>, blocks_for(c, b.chunks(), 1), kThreads, 0, b, b.chunks(), clip,
             recorded ? recorded + first : nullptr);
    });
  }
};
template <class... Entry, class Op> void step(const Op& op, Bufs all_in, Bufs all_out, Context& c) {
  const size_t copies = all_out.size() - op.copied.size(), low = copies - op.split.size();
  for (size_t k = 0; k < copies; ++k)  // copies low bits and other tensors
    if ((k >= low || k < op.first.size()) && all_in[k].bytes != all_out[k].bytes)
      copy_contiguous(c, all_in[k], first_element(all_out[k]));
  const op::StepParts parts(op.first, op.copied, op.split, all_in, all_out);
  const Bufs in = parts.in(), out = parts.out();
  const size_t updated = out.size(), n = op.tensors();
  const Clip clip(op, in, updated + n);
  const std::tuple all{Entries<Entry>(op, in, out, c)...};  // all allocations precede any write
  std::apply([&](const auto&... e) { (e.step(op, clip, c), ...); }, all);
}

// --- a step whose gradient is a GEMM
template <class T, class M> struct Folded : AdamW<T, M> {
  static constexpr bool kCopies = false;
  using AdamW<T, M>::AdamW;
};
// w (rows, columns) has gradient a^T b: a (terms, rows), b (terms, columns). A thread has kTall rows of V adjacent
// columns, so that it reads b once.
constexpr int kTall = 4;
template <class T, class M, int V>
__global__ void __launch_bounds__(kThreads)
    adamw_product_tiles(const __grid_constant__ Folded<T, M> t, const StepValue<typename AdamW<T>::Now> step,
                        const T* a, const T* b, int64_t terms, int64_t rows, int64_t columns,
                        const __grid_constant__ Clip clip) {
  const int64_t across = columns / V, down = (rows + kTall - 1) / kTall;
  const auto factor = clip.factor<T>();
  const auto now = step.get();
  for (GridLoop i(across * down); i; ++i) {
    const int64_t first = *i / across * kTall, j = (*i % across) * V;
    T g[kTall][V] = {};
#pragma unroll 2
    for (int64_t q = 0; q < terms; ++q) {
      const auto right = load16<V>(b + q * columns + j);
#pragma unroll
      for (int r = 0; r < kTall; ++r) {
        const T left = a[q * rows + (first + r < rows ? first + r : first)];
#pragma unroll
        for (int e = 0; e < V; ++e) g[r][e] += left * right.x[e];
      }
    }
#pragma unroll
    for (int r = 0; r < kTall; ++r) {
      if (first + r >= rows) break;
      step_at(t, factor, now, (first + r) * columns + j, g[r]);
    }
  }
}
void adamw_product_step(const op::AdamWProductStep& op, Bufs in, Bufs out, Context& c) {
  const int64_t terms = in[3].size(0), rows = in[3].size(1), columns = in[4].size(1);
  if (out[0].numel() == 0) return;
  const Clip clip(op, in, 5);
  const auto run = [&]<class T, class M>() {
    Folded<T, M> t(op, 0);
    const StepValue<typename AdamW<T>::Now> step(op,
                                                 [](const op::AdamWProductStep& now) { return AdamW<T>(now, 0).now; });
    for (size_t k = 0; k < 3; ++k) t.in[k] = first_element(in[k]), t.out[k] = first_element(out[k]);
    t.copy = nullptr;
    const bool aligned = columns % kVec<T> == 0 && aligned16(in[4].data<T>()) && t.aligned();
    const int64_t tiles = (rows + kTall - 1) / kTall * (columns / (aligned ? kVec<T> : 1));
    launch(c, aligned ? adamw_product_tiles<T, M, kVec<T>> : adamw_product_tiles<T, M, 1>,
           blocks_for(c, tiles, kThreads), kThreads, 0, t, step, in[3].data<T>(), in[4].data<T>(), terms, rows, columns,
           clip);
  };
  if (out[0].dtype() == DType::f64) return run.template operator()<double, double>();
  out[1].dtype() == DType::bf16 ? run.template operator()<float, bf16>() : run.template operator()<float, float>();
}

void adamw_step(const op::AdamWStep& op, Bufs in, Bufs out, Context& c) {
  step<AdamW<float>, AdamW<double>, AdamW<float, bf16>, AdamW<float, float, bf16>, AdamW<float, bf16, bf16>>(op, in,
                                                                                                             out, c);
}
void sgd_step(const op::SgdStep& op, Bufs in, Bufs out, Context& c) {
  op.o.momentum > 0 ? step<Sgd<float, true>, Sgd<double, true>>(op, in, out, c)
                    : step<Sgd<float, false>, Sgd<double, false>>(op, in, out, c);
}
TG_STRIDED_KERNEL(op::SquareSums, cuda, square_sums);
TG_KERNEL(op::NormOfSquareSums, cuda, norm_of_square_sums);
TG_STRIDED_KERNEL(op::AdamWStep, cuda, adamw_step);
TG_KERNEL(op::AdamWProductStep, cuda, adamw_product_step);
TG_STRIDED_KERNEL(op::SgdStep, cuda, sgd_step);
}  // namespace
}  // namespace tg::cuda
