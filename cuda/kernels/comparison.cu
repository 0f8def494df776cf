// Kernels that move elements know only their size. Booleans are bytes of 0 and 1.
#include <tapegrad/cuda/device/map.h>
#include <tapegrad/ops/comparison.h>

#include <limits>

namespace tg::cuda {
namespace {
// Bits of true cases: less, equal, greater, unordered.
template <class T> __device__ __forceinline__ uint8_t holds(uint8_t cases, T x, T y) {
  return cases >> (x < y ? 0 : x == y ? 1 : x > y ? 2 : 3) & 1;
}
template <class F> uint8_t cases_of() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return uint8_t(F::f(0., 1.) | F::f(1., 1.) << 1 | F::f(1., 0.) << 2 | F::f(kNan, kNan) << 3);
}
struct Holds {
  template <class T> __device__ __forceinline__ static uint8_t f(Scalars<T> n, T x, T y) {
    return holds(n.choice, x, y);
  }
};
struct HoldsWithNumber {
  template <class T> __device__ __forceinline__ static uint8_t f(Scalars<T> n, T x) { return holds(n.choice, x, n.a); }
};
template <class G> void visit_compared(DType d, G&& g) {
  if (d == DType::boolean) return g.template operator()<uint8_t>();
  is_index(d) ? kernel::visit_index(d, g) : visit_computed(d, g);
}
void compare_by(uint8_t cases, Bufs in, Bufs out, Context& c) {
  visit_compared(in[0].dtype(), [&]<class T>() { map<Holds, uint8_t, T, T>(c, in, out[0], {{}, {}, cases}); });
}
void compare_scalar_by(uint8_t cases, double s, Bufs in, Bufs out, Context& c) {
  visit_compared(in[0].dtype(), [&]<class T>() { map<HoldsWithNumber, uint8_t, T>(c, in, out[0], {T(s), {}, cases}); });
}
template <class F> void compare(const op::Compare<F>&, Bufs in, Bufs out, Context& c) {
  compare_by(cases_of<F>(), in, out, c);
}
template <class F> void compare_scalar(const op::CompareScalar<F>& op, Bufs in, Bufs out, Context& c) {
  compare_scalar_by(cases_of<F>(), op.s, in, out, c);
}

struct Pick {
  template <class U> __device__ __forceinline__ static U f(Scalars<uint8_t>, uint8_t c, U x, U y) { return c ? x : y; }
};
struct Cover {
  template <class U> __device__ __forceinline__ static U f(Scalars<U> n, U x, uint8_t masked) {
    return masked ? n.a : x;
  }
};
void where(const op::Where&, Bufs in, Bufs out, Context& c) {
  kernel::visit_size(out[0].dtype(), [&]<class U>() { map<Pick, U, uint8_t, U, U>(c, in, out[0]); });
}
void masked_fill(const op::MaskedFill& op, Bufs in, Bufs out, Context& c) {
  visit_bits(out[0].dtype(), op.value, [&]<class U>(U value) {
    map<Cover, U, U, uint8_t>(c, in, out[0], {value, {}});
  });
}

template <class T> Scalars<T> bounds_of(const ClampOptions& o) {
  Scalars<T> b{std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()};
  if constexpr (std::is_floating_point_v<T>) b.b = std::numeric_limits<T>::infinity(), b.a = -b.b;
  if (o.min) b.a = T(*o.min);
  if (o.max) b.b = T(*o.max);
  return b;
}
struct Clamped {
  template <class T> __device__ __forceinline__ static T f(Scalars<T> to, T x) { return op::ClampFn::f(x, to.a, to.b); }
};
struct Passed {
  template <class T> __device__ __forceinline__ static T f(Scalars<T> within, T x, T g) {
    return op::ClampFn::df(x, within.a, within.b, g);
  }
};
void clamp(const op::Clamp& op, Bufs in, Bufs out, Context& c) {
  const auto run = [&]<class T>() { map<Clamped, T, T>(c, in, out[0], bounds_of<T>(op.o)); };
  const DType d = out[0].dtype();
  is_index(d) ? kernel::visit_index(d, run) : visit_computed(d, run);
}
void clamp_grad(const op::ClampGrad& op, Bufs in, Bufs out, Context& c) {
  visit_computed(out[0].dtype(), [&]<class T>() { map<Passed, T, T, T>(c, in, out[0], bounds_of<T>(op.o)); });
}

TG_STRIDED_KERNELS(op::CompareFns, op::Compare, cuda, compare);
TG_STRIDED_KERNELS(op::CompareFns, op::CompareScalar, cuda, compare_scalar);
TG_STRIDED_KERNEL(op::Where, cuda, where);
TG_STRIDED_KERNEL(op::MaskedFill, cuda, masked_fill);
TG_STRIDED_KERNEL(op::Clamp, cuda, clamp);
TG_STRIDED_KERNEL(op::ClampGrad, cuda, clamp_grad);
}  // namespace
}  // namespace tg::cuda
