#include "own_ops.h"

#include <tapegrad/core/check.h>
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/cpu/unary.h>

#include <cmath>

namespace own {

tg::Tensor softsign(const tg::Tensor& x) { return tg::op::unary<Softsign>(x); }
tg::Tensor centred(const tg::Tensor& x) { return tg::emit1(tg::stateless<Centred>(), {x}); }
tg::Tensor unit(const tg::Tensor& x, double epsilon) { return tg::emit1(tg::make_ref<Unit>(epsilon), {x}); }

tg::Layouts Centred::infer(tg::Inputs in) const {
  tg::check::ndim_at_least(kName, in[0], 1);
  tg::check::computes(kName, in[0]);
  return {tg::contiguous_like(in[0])};
}
tg::Tensors Centred::vjp(const tg::Vjp& v) const { return {centred(v.grad())}; }

tg::Layouts Unit::infer(tg::Inputs in) const {
  tg::check::ndim_at_least(kName, in[0], 1);
  tg::check::computes(kName, in[0]);
  TG_CHECK(epsilon >= 0, value, "[{}] epsilon is {}. It must be 0 or more.", kName, epsilon);
  return {tg::contiguous_like(in[0])};
}
// Made of ops, so that it can be differentiated again.
tg::Tensors Unit::vjp(const tg::Vjp& v) const {
  const tg::Tensor x = v.in(0), dy = v.grad(), length = tg::sqrt(tg::sum(x * x) + epsilon);
  const tg::Tensor along = tg::sum(x * dy) / (length * length * length);
  return {dy / length - x * along};
}

namespace {
void centred_cpu(const Centred&, tg::Bufs in, tg::Bufs out, tg::Context&) {
  tg::cpu::for_each_row({in[0]}, out[0], []<class T>(int64_t n, T* y, const T* x) {
    using C = tg::compute_t<T>;  // float for bf16
    C sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += C(x[j]);
    for (int64_t j = 0; j < n; ++j) y[j] = T(C(x[j]) - sum / C(n));
  });
}
void unit_cpu(const Unit& op, tg::Bufs in, tg::Bufs out, tg::Context& context) {
  if (out[0].numel() == 0) return;
  tg::kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = tg::compute_t<T>;
    const T* x = in[0].data<T>();
    const int64_t n = out[0].shape().back(), rows = out[0].numel() / n;
    C* squares = context.scratch<C>(rows);
    tg::cpu::parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        C sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += C(x[r * n + j]) * C(x[r * n + j]);
        squares[r] = sum;
      }
    });
    C all = 0;  // fixed order: independent of the threads
    for (int64_t r = 0; r < rows; ++r) all += squares[r];
    tg::cpu::for_each({in[0]}, out[0], [by = C(1) / std::sqrt(all + C(op.epsilon))](auto v) { return v * by; });
  });
}
}  // namespace
}  // namespace own

TG_UNARY_OP(own::Softsign, cpu);
TG_STRIDED_KERNEL(own::Centred, cpu, own::centred_cpu);  // for_each_row reads any strides
TG_KERNEL(own::Unit, cpu, own::unit_cpu);
