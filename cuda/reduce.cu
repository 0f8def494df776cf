// Kernels of ops/reduce.h, but for cumsum: what is joined, and how. The walk over the elements is in reduce.h.
#include <tapegrad/ops/reduce.h>

#include <tapegrad/cuda/map.h>
#include <tapegrad/cuda/reduce.h>

#include <limits>

namespace tg::cuda {
namespace {
// Integers add up in 64 bits, 16-bit floats in f32.
template <class T> using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, compute_t<T>>;

template <class T> struct Add {
  using A = Acc<T>;
  T* y;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t) const { return A(x); }
  __device__ __forceinline__ void store(int64_t out, A total) const { y[out] = narrow<T>(compute_t<T>(total)); }
};
template <class T> struct Mean : Add<T> {  // in the compute dtype
  using A = Acc<T>;
  A *means, count;
  __device__ __forceinline__ void store(int64_t out, A total) const { means[out] = total / count; }
};
template <class T> struct AddSquares : Add<T> {  // (x - mean)^2, divided
  using A = Acc<T>;
  const A* means;
  A divisor;
  __device__ __forceinline__ A value(compute_t<T> x, int64_t out) const {
    const A d = x - means[out];
    return d * d;
  }
  __device__ __forceinline__ void store(int64_t out, A total) const { this->y[out] = narrow<T>(total / divisor); }
};
template <class T, bool kLargest> struct Best {  // NaN wins
  using A = compute_t<T>;
  T* y;
  static __device__ __forceinline__ A start() {
    using Limits = std::numeric_limits<A>;
    if constexpr (std::is_integral_v<A>)
      return kLargest ? Limits::lowest() : Limits::max();
    else
      return kLargest ? -Limits::infinity() : Limits::infinity();
  }
  static __device__ __forceinline__ A join(A a, A b) { return (kLargest ? a > b : a < b) || a != a ? a : b; }
  __device__ __forceinline__ A value(A x, int64_t) const { return x; }
  __device__ __forceinline__ void store(int64_t out, A best) const { y[out] = narrow<T>(best); }
};

// A value equals itself, NaN too: the largest of a row with a NaN is that NaN.
template <class C> __device__ __forceinline__ bool same(C a, C b) { return a == b || (a != a && b != b); }
template <class T> struct Ties {  // how many elements equal the extremum
  using A = int64_t;
  const T* best;
  A* count;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t out) const { return same(x, widen(best[out])); }
  __device__ __forceinline__ void store(int64_t out, A total) const { count[out] = total; }
};
struct Share {
  template <class C> static __device__ __forceinline__ C f(const Numbers<C>&, C x, C best, C dy, int64_t count) {
    return same(x, best) ? dy / C(count) : C(0);
  }
};

// The dtypes of check::number().
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_computed(d, f); }
Reduced split(uint8_t dims, const Buf& x) { return split(dims, x.shape(), x.strides()); }

void sum(const Sum& op, Bufs in, Bufs out, Context& c) {
  visit_number(out[0].dtype(),
               [&]<class T>() { reduce(c, Add<T>{out[0].data<T>()}, in[0].data<T>(), split(op.dims, in[0])); });
}
template <bool kLargest> void extremum(const Extremum<kLargest>& op, Bufs in, Bufs out, Context& c) {
  visit_number(out[0].dtype(), [&]<class T>() {
    reduce(c, Best<T, kLargest>{out[0].data<T>()}, in[0].data<T>(), split(op.dims, in[0]));
  });
}
void var(const Var& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const Reduced z = split(op.dims, in[0]);
  visit_computed(out[0].dtype(), [&]<class T>() {
    using A = Acc<T>;
    const Scratch means(c, size_t(z.outputs) * sizeof(A));
    T *x = in[0].data<T>(), *y = out[0].data<T>();
    reduce(c, Mean<T>{{y}, means.as<A>(), A(z.n)}, x, z);
    reduce(c, AddSquares<T>{{y}, means.as<A>(), A(double(z.n) - op.correction)}, x, z);
  });
}
void extremum_grad(const ExtremumGrad& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &dx = out[0];
  if (x.numel() == 0) return;
  const Reduced z = split(op.dims, x);
  Layout repeated{x.shape(), Strides::filled(x.shape().size(), 0), 0, x.dtype(), c.device};
  for (size_t d = x.shape().size(), step = 1; d-- > 0;) {
    if (op.dims >> d & 1) continue;
    repeated.strides[d] = int64_t(step);
    step *= size_t(x.size(d));
  }
  Layout repeated_count = repeated;
  repeated_count.dtype = DType::i64;
  const Scratch count(c, size_t(z.outputs) * sizeof(int64_t));
  visit_computed(dx.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Dense<T> y(c, in[1]), dy(c, in[2]);
    const T *best = y, *slope = dy;
    reduce(c, Ties<T>{best, count.as<int64_t>()}, x.data<T>(), z);
    const auto bytes = [](const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); };
    const Buf operands[] = {
        x, {&repeated, bytes(best)}, {&repeated, bytes(slope)}, {&repeated_count, bytes(count.as<void>())}};
    map<Share, C, C, C, C, int64_t>(c, operands, dx);
  });
}
TG_KERNEL(ExtremumGrad, cuda, extremum_grad);
TG_KERNEL(Sum, cuda, sum);
TG_KERNEL(Var, cuda, var);
TG_KERNEL(Max, cuda, extremum<true>);
TG_KERNEL(Min, cuda, extremum<false>);
}  // namespace
}  // namespace tg::cuda
