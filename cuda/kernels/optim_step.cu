// Kernels of ops/optim_step.h: all tensors of an op in one launch (batch.h), 16 bytes at a time. The norm is summed in
// f64 by a number of blocks that the sizes alone decide, then by one block: the same bits on every run.
#include <tapegrad/cuda/device/multi_tensor.h>
#include <tapegrad/ops/optim_step.h>

#include <cmath>
#include <deque>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// A batch of as few or as many as there are: small launches carry small parameters.
template <class D, int kMany, class F> void for_batches(const std::vector<D>& all, F&& run) {
  constexpr size_t kFew = 4;
  const auto fill = [&]<int kMost>(size_t from) {
    Batch<D, kMost> b;
    size_t i = from;
    for (; i < all.size() && !b.full(); ++i) b.add(all[i]);
    if (b.count > 0) run(b);
    return i;
  };
  for (size_t i = 0; i < all.size();)
    i = all.size() - i <= kFew ? fill.template operator()<int(kFew)>(i) : fill.template operator()<kMany>(i);
}

// --- the norm of all gradients ------------------------------------------------------------------------------------
struct Gradient {
  const void* data;
  int64_t n;
  DType dtype;
};
constexpr int64_t kPartials = 1024;  // at most, of one launch

// Of elements [begin, end), a multiple of 16 bytes from the start of the tensor; each thread its own.
template <class T> __device__ __forceinline__ double square_sum(const void* data, int64_t begin, int64_t end) {
  constexpr int V = kVec<T>;
  const T* x = static_cast<const T*>(data);
  double sum = 0;
  int64_t scalars = begin;
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    scalars = begin + (end - begin) / V * V;
    for (int64_t i = begin + int64_t(threadIdx.x) * V; i < scalars; i += int64_t(kThreads) * V) {
      const auto v = *reinterpret_cast<const Vec<T>*>(x + i);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += double(widen(v.x[k])) * double(widen(v.x[k]));
    }
  }
  for (int64_t i = scalars + threadIdx.x; i < end; i += kThreads) sum += double(widen(x[i])) * double(widen(x[i]));
  return sum;
}
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    global_norm_squares(const __grid_constant__ Batch<Gradient, kMost> batch, int64_t chunks, double* part) {
  double sum = 0;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int k = batch.find(c);
    const Gradient& g = batch.item[k];
    const int64_t begin = (c - batch.first[k]) * kBatchChunk,
                  end = g.n < begin + kBatchChunk ? g.n : begin + kBatchChunk;
    if (g.dtype == DType::f32)
      sum += square_sum<float>(g.data, begin, end);
    else if (g.dtype == DType::bf16)
      sum += square_sum<bf16>(g.data, begin, end);
    else
      sum += square_sum<double>(g.data, begin, end);
  }
  sum = block_all<SumOp, kThreads>(sum, 0.0);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
template <class T>
__global__ void __launch_bounds__(kThreads) global_norm_finish(const double* part, int64_t parts, T* norm) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += kThreads) sum += part[i];
  sum = block_all<SumOp, kThreads>(sum, 0.0);
  if (threadIdx.x == 0) *norm = T(sqrt(sum));
}
void global_norm(const op::GlobalNorm&, Bufs in, Bufs out, Context& c) {
  constexpr int kMany = 512;
  static_assert(sizeof(Batch<Gradient, kMany>) + sizeof(int64_t) + sizeof(double*) <= kMostParameters);
  std::vector<Gradient> all;
  std::deque<Contiguous> data;
  for (const Buf& x : in) all.push_back({data.emplace_back(c, x).data(), x.numel(), x.dtype()});
  const Scratch partials(c, (all.size() / kMany + 2) * size_t(kPartials) * sizeof(double));
  auto* part = partials.as<double>();
  int64_t parts = 0;
  for_batches<Gradient, kMany>(all, [&]<int kMost>(const Batch<Gradient, kMost>& b) {
    const int64_t blocks = std::min(kPartials, b.chunks());
    launch(c, global_norm_squares<kMost>, unsigned(blocks), kThreads, 0, b, b.chunks(), part + parts);
    parts += blocks;
  });
  const auto finish = [&]<class T>(T* norm) {
    launch(c, global_norm_finish<T>, 1, kThreads, 0, static_cast<const double*>(part), parts, norm);
  };
  out[0].dtype() == DType::f64 ? finish(out[0].data<double>()) : finish(out[0].data<float>());
}

// --- AdamW --------------------------------------------------------------------------------------------------------
template <class T> struct Weight {
  const T *w, *m, *v, *g;
  T *w1, *m1, *v1;  // may be w, m and v
  int64_t n;
  T decay;  // weight_decay where that is l2, else 1 - lr weight_decay
};
template <class T> struct Decay {
  T before, after, l2;
};
struct Norm {  // of all gradients, f64 or f32; both null: no clipping
  const double* wide = nullptr;
  const float* narrow = nullptr;
};
template <class T> struct Numbers {  // of all tensors; computed in double, used in T
  T beta1, rest1, beta2, rest2, rate, root, eps;
  WeightDecay kind;
  Norm norm;
  double max_norm;

  Numbers(const op::AdamWStep& op, const Norm& n) : kind(op.o.decay), norm(n), max_norm(op.max_norm) {
    const AdamWOptions& o = op.o;
    beta1 = T(o.beta1), rest1 = T(1 - o.beta1), beta2 = T(o.beta2), rest2 = T(1 - o.beta2), eps = T(o.eps);
    const double first = 1 - std::pow(o.beta1, double(op.t)), second = std::sqrt(1 - std::pow(o.beta2, double(op.t)));
    const bool corrected = o.eps_placement == EpsPlacement::corrected;
    rate = T(corrected ? op.lr / first : op.lr * second / first);
    root = T(corrected ? 1 / second : 1);
  }
  __device__ __forceinline__ T clip() const {
    if (!norm.wide && !norm.narrow) return T(1);
    const double c = max_norm / ((norm.wide ? *norm.wide : double(*norm.narrow)) + 1e-6);
    return T(c > 1 ? 1 : c);  // NaN stays: a bad gradient shows
  }
  __device__ __forceinline__ Decay<T> decay(T d) const {
    return {kind == WeightDecay::before ? d : T(1), kind == WeightDecay::after ? d : T(1),
            kind == WeightDecay::l2 ? d : T(0)};
  }
  __device__ __forceinline__ void update(T clip, const Decay<T>& d, T g, T& w, T& m, T& v) const {
    const T x = g * clip + d.l2 * w;
    m = beta1 * m + rest1 * x;
    v = beta2 * v + rest2 * (x * x);
    w = (w * d.before - rate * (m / (sqrt(v) * root + eps))) * d.after;
  }
};
// Elements [at, at + V) of what t points at.
template <int V, class T>
__device__ __forceinline__ void step_at(const Weight<T>& t, const Numbers<T>& numbers, T clip, const Decay<T>& decay,
                                        int at) {
  const auto load = [at](const T* p) { return *reinterpret_cast<const Vec<T, V>*>(p + at); };
  const auto store = [at](T* p, const Vec<T, V>& x) { *reinterpret_cast<Vec<T, V>*>(p + at) = x; };
  Vec<T, V> w = load(t.w), m = load(t.m), v = load(t.v);
  const Vec<T, V> g = load(t.g);
#pragma unroll
  for (int k = 0; k < V; ++k) numbers.update(clip, decay, g.x[k], w.x[k], m.x[k], v.x[k]);
  store(t.w1, w), store(t.m1, m), store(t.v1, v);
}
template <class T, int kMost>
__global__ void __launch_bounds__(kThreads) adamw_step_all(const __grid_constant__ Batch<Weight<T>, kMost> batch,
                                                           int64_t chunks, const __grid_constant__ Numbers<T> numbers) {
  constexpr int V = kVec<T>;
  const T clip = numbers.clip();
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int k = batch.find(c);
    Weight<T> t = batch.item[k];
    const Decay<T> decay = numbers.decay(t.decay);
    const int64_t begin = (c - batch.first[k]) * kBatchChunk;
    t.w += begin, t.m += begin, t.v += begin, t.g += begin, t.w1 += begin, t.m1 += begin, t.v1 += begin;
    const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
    const uintptr_t low =
        address(t.w) | address(t.m) | address(t.v) | address(t.g) | address(t.w1) | address(t.m1) | address(t.v1);
    const int n = int(t.n - begin < kBatchChunk ? t.n - begin : kBatchChunk);
    const int scalars = low % 16 == 0 ? n / V * V : 0;
    for (int i = int(threadIdx.x) * V; i < scalars; i += kThreads * V) step_at<V>(t, numbers, clip, decay, i);
    for (int i = scalars + int(threadIdx.x); i < n; i += kThreads) step_at<1>(t, numbers, clip, decay, i);
  }
}
template <class T> struct Weights {
  std::deque<Dense<T>> dense;
  std::vector<Weight<T>> all;

  Weights(const op::AdamWStep& op, Bufs in, Bufs out, const Context& c) {
    const size_t n = op.tensors();
    for (size_t i = 0; i < n; ++i) {
      if (out[i].dtype() != dtype_of<T>()) continue;
      const auto from = [&](size_t role) -> const T* { return dense.emplace_back(c, in[role * n + i]); };
      const auto to = [&](size_t role) { return out[role * n + i].template data<T>(); };
      const double d = op.weight_decay[i];
      all.push_back({from(0), from(1), from(2), from(3), to(0), to(1), to(2), out[i].numel(),
                     T(op.o.decay == WeightDecay::l2 ? d : 1 - op.lr * d)});
    }
  }
};
template <class T> void step(const op::AdamWStep& op, const Weights<T>& weights, const Norm& norm, const Context& c) {
  constexpr int kMany = 384;
  using Most = Batch<Weight<T>, kMany>;
  static_assert(sizeof(Most) + sizeof(int64_t) + sizeof(Numbers<T>) <= kMostParameters);
  const Numbers<T> numbers(op, norm);
  for_batches<Weight<T>, kMany>(weights.all, [&]<int kMost>(const Batch<Weight<T>, kMost>& b) {
    launch(c, adamw_step_all<T, kMost>, blocks_for(c, b.chunks(), 1), kThreads, 0, b, b.chunks(), numbers);
  });
}
void adamw_step(const op::AdamWStep& op, Bufs in, Bufs out, Context& c) {
  const size_t n = op.tensors();
  Norm norm;
  if (in.size() > 4 * n)
    in[4 * n].dtype() == DType::f64 ? void(norm.wide = in[4 * n].data<double>())
                                    : void(norm.narrow = in[4 * n].data<float>());
  const Weights<float> f32(op, in, out, c);  // all memory is taken before anything is written
  const Weights<double> f64(op, in, out, c);
  step(op, f32, norm, c);
  step(op, f64, norm, c);
}
TG_STRIDED_KERNEL(op::GlobalNorm, cuda, global_norm);
TG_STRIDED_KERNEL(op::AdamWStep, cuda, adamw_step);
}  // namespace
}  // namespace tg::cuda
