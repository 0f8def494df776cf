#include <tapegrad/ops/reduce.h>

#include <tapegrad/cuda/device/map.h>
#include <tapegrad/cuda/device/reduce.h>

#include <limits>

namespace tg::cuda {
namespace {
// Integers accumulate in 64 bits, 16-bit floats in f32.
template <class T> using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, compute_t<T>>;
template <class A> __device__ __forceinline__ constexpr A lowest() {
  using Limits = std::numeric_limits<A>;
  if constexpr (std::is_integral_v<A>)
    return Limits::lowest();
  else
    return -Limits::infinity();
}

template <class T> inline constexpr bool kCommon = std::is_same_v<T, float> || std::is_same_v<T, bf16>;

// Chunk results: sums, or maxima of keys (Best). Run-time values: one kernel for every op and dtype, since such results
// are few.
template <class Total> struct OfChunks {
  using A = Total;
  static constexpr Forms kForms = Forms::few;
  bool best, negated;
  DType stored;
  void* y;
  A divisor = 1;
  __device__ __forceinline__ A start() const { return best ? lowest<A>() : A(0); }
  __device__ __forceinline__ A join(A a, A b) const { return best ? MaxOp()(a, b) : a + b; }
  __device__ __forceinline__ A value(A x, int64_t) const { return x; }
  __device__ __forceinline__ void store(int64_t out, A total) const {
    if constexpr (std::is_integral_v<A>) {
      total = negated ? ~total : total;
      if (stored == DType::i32)
        static_cast<int32_t*>(y)[out] = int32_t(total);
      else
        static_cast<A*>(y)[out] = total;
    } else {
      total = (negated ? -total : total) / divisor;
      if (std::is_same_v<A, float> && stored == DType::bf16)
        static_cast<bf16*>(y)[out] = narrow<bf16>(float(total));
      else
        static_cast<A*>(y)[out] = total;
    }
  }
  OfChunks partial() const { return *this; }
};

template <class T> struct Add {
  using A = Acc<T>;
  static constexpr Forms kForms = std::is_integral_v<T> ? Forms::few : Forms::all;
  T* y;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t) const { return A(x); }
  __device__ __forceinline__ void store(int64_t out, A total) const { y[out] = narrow<T>(compute_t<T>(total)); }
  OfChunks<A> partial() const { return {false, false, dtype_of<T>(), y}; }
};
template <class T> struct Moment {
  using A = compute_t<T>;
  const A* means;
  A* first;  // means, while `means` is null
  T* second;
  A divisor;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(A x, int64_t out) const {
    const A d = means ? x - means[out] : x;
    return means ? d * d : d;
  }
  __device__ __forceinline__ void store(int64_t out, A total) const {
    if (means)
      second[out] = narrow<T>(total / divisor);
    else
      first[out] = total / divisor;
  }
  OfChunks<A> partial() const {
    return means ? OfChunks<A>{false, false, dtype_of<T>(), second, divisor}
                 : OfChunks<A>{false, false, dtype_of<A>(), first, divisor};
  }
};
// Minimum: maximum of negated values; NaN wins.
template <class T> struct Best {
  using A = Acc<T>;
  static constexpr Forms kForms = kCommon<T> ? Forms::all : Forms::few;
  bool largest;
  T* y;
  static __device__ __forceinline__ A start() { return lowest<A>(); }
  static __device__ __forceinline__ A join(A a, A b) { return MaxOp()(a, b); }
  __device__ __forceinline__ A key(A x) const {
    if constexpr (std::is_integral_v<A>)
      return largest ? x : ~x;  // -x would overflow
    else
      return largest ? x : -x;
  }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t) const { return key(x); }
  __device__ __forceinline__ void store(int64_t out, A best) const { y[out] = narrow<T>(compute_t<T>(key(best))); }
  OfChunks<A> partial() const { return {true, !largest, dtype_of<T>(), y}; }
};

// NaN, if any, is a row's maximum.
template <class C> __device__ __forceinline__ bool same(C a, C b) { return a == b || (a != a && b != b); }
template <class T> struct Ties {
  using A = int64_t;
  static constexpr Forms kForms = kCommon<T> ? Forms::columns : Forms::few;
  const T* best;
  A* count;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t out) const { return same(x, widen(best[out])); }
  __device__ __forceinline__ void store(int64_t out, A total) const { count[out] = total; }
  OfChunks<A> partial() const { return {false, false, DType::i64, count}; }
};
struct Share {
  template <class C> static __device__ __forceinline__ C f(const Scalars<C>&, C x, C best, C dy, int64_t count) {
    return same(x, best) ? dy / C(count) : C(0);
  }
};

Reduced split(uint8_t dims, const Buf& x) { return split(dims, x.shape(), x.strides()); }

void sum(const op::Sum& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_number(out[0].dtype(),
                       [&]<class T>() { reduce(c, Add<T>{out[0].data<T>()}, in[0].data<T>(), split(op.dims, in[0])); });
}
template <bool kLargest> void extremum(const op::Extremum<kLargest>& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    reduce(c, Best<T>{kLargest, out[0].data<T>()}, in[0].data<T>(), split(op.dims, in[0]));
  });
}
void var(const op::Var& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const Reduced z = split(op.dims, in[0]);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using A = Acc<T>;
    const Scratch means(c, size_t(z.outputs) * sizeof(A));
    T *x = in[0].data<T>(), *y = out[0].data<T>();
    reduce(c, Moment<T>{nullptr, means.as<A>(), nullptr, A(z.n)}, x, z);
    reduce(c, Moment<T>{means.as<A>(), nullptr, y, A(double(z.n) - op.correction)}, x, z);
  });
}
void extremum_grad(const op::ExtremumGrad& op, Bufs in, Bufs out, Context& c) {
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
  kernel::visit_float(dx.dtype(), [&]<class T>() {
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
TG_STRIDED_KERNEL(op::ExtremumGrad, cuda, extremum_grad);
TG_STRIDED_KERNEL(op::Sum, cuda, sum);
TG_STRIDED_KERNEL(op::Var, cuda, var);
TG_STRIDED_KERNEL(op::Max, cuda, extremum<true>);
TG_STRIDED_KERNEL(op::Min, cuda, extremum<false>);
}  // namespace
}  // namespace tg::cuda
