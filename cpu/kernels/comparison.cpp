// where and masked_fill move elements by size; bool is bytes of 0 and 1.
#include <tapegrad/cpu/simd/map.h>
#include <tapegrad/ops/comparison.h>

#include <cstring>
#include <limits>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class F, class G> void visit_compared(DType d, G&& g) {
  if constexpr (F::kBools)
    if (d == DType::boolean) return g.template operator()<uint8_t>();
  is_index(d) ? kernel::visit_index(d, g) : visit_computed(d, g);
}
template <class F> void compare(const op::Compare<F>&, Bufs in, Bufs out, Context&) {
  visit_compared<F>(in[0].dtype(),
                    [&]<class T>() { map<uint8_t, T, T>(in, out, [](T x, T y) { return uint8_t(F::f(x, y)); }); });
}
template <class F> void compare_scalar(const op::CompareScalar<F>& op, Bufs in, Bufs out, Context&) {
  visit_compared<F>(in[0].dtype(), [&]<class T>() {
    const T s = T(op.s);
    map<uint8_t, T>(in, out, [s](T x) { return uint8_t(F::f(x, s)); });
  });
}

void where(const op::Where&, Bufs in, Bufs out, Context&) {
  kernel::visit_size(out[0].dtype(),
                     [&]<class U>() { map<U, uint8_t, U, U>(in, out, [](uint8_t c, U x, U y) { return c ? x : y; }); });
}
void masked_fill(const op::MaskedFill& op, Bufs in, Bufs out, Context&) {
  uint64_t bytes = 0;
  visit_dtype(out[0].dtype(), [&]<class T>() {
    const T value = T(compute_t<T>(op.value));
    std::memcpy(&bytes, &value, sizeof value);
  });
  kernel::visit_size(out[0].dtype(), [&]<class U>() {
    U value;
    std::memcpy(&value, &bytes, sizeof value);
    map<U, U, uint8_t>(in, out, [value](U x, uint8_t masked) { return masked ? value : x; });
  });
}

template <class T> struct Bounds {
  T min = std::numeric_limits<T>::lowest(), max = std::numeric_limits<T>::max();
  explicit Bounds(const ClampOptions& o) {
    if constexpr (std::is_floating_point_v<T>) max = std::numeric_limits<T>::infinity(), min = -max;
    if (o.min) min = T(*o.min);
    if (o.max) max = T(*o.max);
  }
};
void clamp(const op::Clamp& op, Bufs in, Bufs out, Context&) {
  const auto run = [&]<class T>() {
    const Bounds<T> b(op.o);
    map<T, T>(in, out, [b](T x) { return op::ClampFn::f(x, b.min, b.max); });
  };
  const DType d = out[0].dtype();
  is_index(d) ? kernel::visit_index(d, run) : visit_computed(d, run);
}
void clamp_grad(const op::ClampGrad& op, Bufs in, Bufs out, Context&) {
  visit_computed(out[0].dtype(), [&]<class T>() {
    const Bounds<T> b(op.o);
    map<T, T, T>(in, out, [b](T x, T g) { return op::ClampFn::df(x, b.min, b.max, g); });
  });
}

TG_STRIDED_KERNELS(op::CompareFns, op::Compare, cpu, compare);
TG_STRIDED_KERNELS(op::CompareFns, op::CompareScalar, cpu, compare_scalar);
TG_STRIDED_KERNEL(op::Where, cpu, where);
TG_STRIDED_KERNEL(op::MaskedFill, cpu, masked_fill);
TG_STRIDED_KERNEL(op::Clamp, cpu, clamp);
TG_STRIDED_KERNEL(op::ClampGrad, cpu, clamp_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
