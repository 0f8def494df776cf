// Kernels of ops/pointwise.h, made by folding over its lists.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
// out[i] = f(in[i]...), computed in compute_t<T>.
template <class T, size_t N, class F> void map(Bufs in, Bufs out, F f) {
  using C = compute_t<T>;
  const auto loop = [f](int64_t n, T* y, const std::array<const T*, N>& x) {
    TG_SAME_INDEX
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (N == 1)
        y[i] = T(f(C(x[0][i])));
      else if constexpr (N == 2)
        y[i] = T(f(C(x[0][i]), C(x[1][i])));
      else
        y[i] = T(f(C(x[0][i]), C(x[1][i]), C(x[2][i])));
    }
  };
  map_blocks<T, N>(in, out, BlockLoop<T, N>(loop));
}

template <class F> void unary(const Unary<F>&, Bufs in, Bufs out, Context&) {
  visit_float(out[0].dtype(), [&]<class T>() { map<T, 1>(in, out, [](auto x) { return F::f(x); }); });
}
template <class F> void unary_grad(const UnaryGrad<F>&, Bufs in, Bufs out, Context&) {
  visit_float(out[0].dtype(), [&]<class T>() {
    if constexpr (UnaryGrad<F>::kDy == 2)
      map<T, 3>(in, out, [](auto x, auto y, auto g) { return F::df(x, y) * g; });
    else
      map<T, 2>(in, out, [](auto s, auto g) { return F::df(s, s) * g; });
  });
}
template <class F> void binary(const Binary<F>&, Bufs in, Bufs out, Context&) {
  const auto run = [&]<class T>() { map<T, 2>(in, out, [](auto x, auto y) { return F::f(x, y); }); };
  if constexpr (std::is_same_v<F, Div>)
    visit_float(out[0].dtype(), run);
  else
    visit_number(out[0].dtype(), run);
}
template <class F> void binary_scalar(const BinaryScalar<F>& op, Bufs in, Bufs out, Context&) {
  const auto run = [&]<class T>() {
    const auto s = compute_t<T>(op.s);
    if (op.left)
      map<T, 1>(in, out, [s](auto x) { return F::f(s, x); });
    else
      map<T, 1>(in, out, [s](auto x) { return F::f(x, s); });
  };
  if constexpr (std::is_same_v<F, Div>)
    visit_float(out[0].dtype(), run);
  else
    visit_number(out[0].dtype(), run);
}

constexpr KernelOrigin kPointwiseOrigin{__FILE__, __LINE__, TG_ISA_LEVEL};
template <class... U, class... B> bool add_all(TypeList<U...>, TypeList<B...>, const KernelOrigin& o) {
  (add_kernel<Unary<U>, Backend::cpu, unary<U>>(o), ...);
  (add_kernel<UnaryGrad<U>, Backend::cpu, unary_grad<U>>(o), ...);
  (add_kernel<Binary<B>, Backend::cpu, binary<B>>(o), ...);
  (add_kernel<BinaryScalar<B>, Backend::cpu, binary_scalar<B>>(o), ...);
  return true;
}
[[maybe_unused]] const bool registered = add_all(UnaryFns{}, BinaryFns{}, kPointwiseOrigin);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
