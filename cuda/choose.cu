// Kernels of ops/choose.h. Where and masked_fill move elements and know their size only; bool is read and written as
// bytes of 0 and 1.
#include <tapegrad/cuda/map.h>
#include <tapegrad/ops/choose.h>

#include <limits>

namespace tg::cuda {
namespace {
template <class F> struct Holds {
  template <class T> __device__ __forceinline__ uint8_t operator()(T x, T y) const { return uint8_t(F::f(x, y)); }
};
template <class F, class T> struct HoldsWithNumber {
  T s;
  __device__ __forceinline__ uint8_t operator()(T x) const { return uint8_t(F::f(x, s)); }
};
// The types that comparisons see: as arithmetic, and bool as bytes where the function takes it.
template <class F, class G> void visit_compared(DType d, G&& g) {
  if constexpr (F::kBools)
    if (d == DType::boolean) return g.template operator()<uint8_t>();
  is_index(d) ? visit_index(d, g) : visit_compute_type(d, g);
}
template <class F> void compare(const Compare<F>&, Bufs in, Bufs out, Context& c) {
  visit_compared<F>(in[0].dtype(), [&]<class T>() { map<uint8_t, T, T>(c, in, out[0], Holds<F>{}); });
}
template <class F> void compare_scalar(const CompareScalar<F>& op, Bufs in, Bufs out, Context& c) {
  visit_compared<F>(in[0].dtype(), [&]<class T>() { map<uint8_t, T>(c, in, out[0], HoldsWithNumber<F, T>{T(op.s)}); });
}

struct Pick {
  template <class U> __device__ __forceinline__ U operator()(uint8_t c, U x, U y) const { return c ? x : y; }
};
template <class U> struct Cover {
  U value;
  __device__ __forceinline__ U operator()(U x, uint8_t masked) const { return masked ? value : x; }
};
void where(const Where&, Bufs in, Bufs out, Context& c) {
  visit_size(out[0].dtype(), [&]<class U>() { map<U, uint8_t, U, U>(c, in, out[0], Pick{}); });
}
void masked_fill(const MaskedFill& op, Bufs in, Bufs out, Context& c) {
  visit_bits(out[0].dtype(), op.value, [&]<class U>(U value) { map<U, U, uint8_t>(c, in, out[0], Cover<U>{value}); });
}

template <class T> struct Bounds {
  T min = std::numeric_limits<T>::lowest(), max = std::numeric_limits<T>::max();
  explicit Bounds(const ClampOptions& o) {
    if constexpr (std::is_floating_point_v<T>) max = std::numeric_limits<T>::infinity(), min = -max;
    if (o.min) min = T(*o.min);
    if (o.max) max = T(*o.max);
  }
};
template <class T> struct Clamped {
  Bounds<T> b;
  __device__ __forceinline__ T operator()(T x) const {
    return math::select(x < b.min, b.min, math::select(x > b.max, b.max, x));
  }
};
template <class T> struct Passed {
  Bounds<T> b;
  __device__ __forceinline__ T operator()(T x, T g) const { return math::select((x >= b.min) & (x <= b.max), g, T(0)); }
};
void clamp(const Clamp& op, Bufs in, Bufs out, Context& c) {
  const auto run = [&]<class T>() { map<T, T>(c, in, out[0], Clamped<T>{Bounds<T>(op.o)}); };
  const DType d = out[0].dtype();
  is_index(d) ? visit_index(d, run) : visit_compute_type(d, run);
}
void clamp_grad(const ClampGrad& op, Bufs in, Bufs out, Context& c) {
  visit_compute_type(out[0].dtype(), [&]<class T>() { map<T, T, T>(c, in, out[0], Passed<T>{Bounds<T>(op.o)}); });
}

constexpr KernelOrigin kCompareOrigin{__FILE__, __LINE__, TG_ISA_LEVEL};
template <class... F> bool add_comparisons(TypeList<F...>, const KernelOrigin& o) {
  (add_kernel<Compare<F>, Backend::cuda, compare<F>>(o), ...);
  (add_kernel<CompareScalar<F>, Backend::cuda, compare_scalar<F>>(o), ...);
  return true;
}
[[maybe_unused]] const bool compared = add_comparisons(CompareFns{}, kCompareOrigin);
TG_KERNEL(Where, cuda, where);
TG_KERNEL(MaskedFill, cuda, masked_fill);
TG_KERNEL(Clamp, cuda, clamp);
TG_KERNEL(ClampGrad, cuda, clamp_grad);
}  // namespace
}  // namespace tg::cuda
