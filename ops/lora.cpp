#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <array>
#include <cmath>

namespace tg {
double op::Lora::multiply_adds(Bufs in, Bufs out) const {
  return double(out[1].numel()) * double(in[1].size(0)) + double(out[0].numel()) * double(in[2].size(0));
}
Layouts op::Lora::infer(Inputs in) const {
  const Tensor &x = in[0], &a = in[1], &b = in[2];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  for (size_t i = 1; i < in.size(); ++i) check::same_dtype(kName, x, in[i]);
  TG_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.size(1) == b.size(0), shape,
           "[lora] a is {} and b is {}. They must be (in, r) and (r, out) with the same r.", a, b);
  TG_CHECK(x.shape().back() == a.size(0), shape,
           "[lora] x is {} and a is {}. x's last size ({}) must equal a's first ({}): a is (in, r).", x, a,
           x.shape().back(), a.size(0));
  TG_CHECK(std::isfinite(scale), value, "[lora] scale is {}. It must be finite.", scale);
  const Shape y = x.shape().without_last().followed_by(b.size(1));
  if (in.size() > 3)
    TG_CHECK(in[3].shape() == y, shape, "[lora] base is {}, and x {} gives {}. Their shapes must be equal.", in[3], x,
             y);
  return {contiguous_like(x, y), contiguous_like(x, {x.shape().without_last().product(), a.size(1)})};
}
Tensors op::Lora::vjp(const Vjp& v) const {
  constexpr MatmulOptions plain{.precision = MatmulPrecision::highest},
      by_transposed{.trans_b = true, .precision = plain.precision},
      transposed{.trans_a = true, .precision = plain.precision};
  const Tensor &dy = v.grad(0), &dh_alone = v.grad(1);  // dh_alone: in second derivatives
  Tensor g, dh;                                         // (T, out), (T, r)
  if (dy) g = detail::as_rows(dy);
  if (v.wants(0) || v.wants(1)) {
    if (dy) dh = matmul(g, v.in(2), by_transposed) * scale;
    if (dh_alone) dh = dh ? dh + dh_alone : dh_alone;
  }
  Tensors r;
  r.emplace_back(v.wants(0) && dh ? reshape(matmul(dh, v.in(1), by_transposed), v.in_shape(0)) : Tensor());
  r.emplace_back(v.wants(1) && dh ? matmul(detail::as_rows(v.in(0)), dh, transposed) : Tensor());
  r.emplace_back(v.wants(2) && dy ? matmul(v.out(1) * scale, g, transposed) : Tensor());
  if (v.inputs() > 3) r.emplace_back(v.wants(3) ? dy : Tensor());
  return r;
}
Tensors op::Lora::compose(Inputs in) const {
  const Tensor h = matmul(detail::as_rows(in[0]), in[1]);  // (T, r)
  const Shape shape = in[0].shape().without_last().followed_by(in[2].size(1));
  const Tensor y = reshape(matmul(h * scale, in[2]), shape);
  return {in.size() > 3 ? in[3] + y : y, h};
}
Tensor lora(const Tensor& x, const Tensor& a, const Tensor& b, double scale, const Tensor& base) {
  auto op = make_ref<op::Lora>(scale);
  // matmul() uses tensor cores, lora() does not.
  if (matmul_precision() != MatmulPrecision::highest && x.dtype() == DType::f32 && x.device().backend == Backend::cuda)
    return base ? op->compose(std::array{x, a, b, base})[0] : op->compose(std::array{x, a, b})[0];
  return base ? emit1(std::move(op), {x, a, b, base}) : emit1(std::move(op), {x, a, b});
}
}  // namespace tg
