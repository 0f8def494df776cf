#include <tapegrad/ops/check.h>
#include <tapegrad/ops/convert.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

namespace tg {
namespace {
int64_t rows_of(const Shape& s) { return Shape(s.begin(), s.end() - 1).product(); }
}  // namespace

Layouts Lora::infer(Inputs in) const {
  const Tensor &x = in[0], &a = in[1], &b = in[2];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  for (size_t i = 1; i < in.size(); ++i) check::same_dtype(kName, x, in[i]);
  TG_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.size(1) == b.size(0), shape,
           "[lora] a is {} and b is {}. They must be (in, r) and (r, out) with one r.", a, b);
  TG_CHECK(x.shape().back() == a.size(0), shape,
           "[lora] x is {} and a is {}. x's last size ({}) must equal a's first ({}): a is (in, r).", x, a,
           x.shape().back(), a.size(0));
  TG_CHECK(std::isfinite(scale), value, "[lora] scale is {}. It must be finite.", scale);
  Shape y = x.shape();
  y.back() = b.size(1);
  if (in.size() > 3)
    TG_CHECK(in[3].shape() == y, shape, "[lora] base is {}, and x {} gives {}. Their shapes must be equal.", in[3], x, y);
  return {Layout::contiguous(y, x.dtype(), x.device()),
          Layout::contiguous({rows_of(x.shape()), a.size(1)}, x.dtype(), x.device())};
}
Tensors Lora::vjp(const Vjp& v) const {
  const Shape& xs = v.in_shape(0);
  const int64_t rows = rows_of(xs);
  const Tensor& dy = v.grad(0);
  Tensors r;
  for (size_t i = 0; i < v.inputs(); ++i) r.emplace_back();
  if (!dy) return r;
  const Tensor g = reshape(dy, {rows, v.in_shape(2)[1]});
  if (v.wants(0) || v.wants(1)) {
    const Tensor dh = matmul(g, v.in(2), {.trans_b = true, .products = products}) * scale;  // (T, r)
    if (v.wants(0)) r[0] = reshape(matmul(dh, v.in(1), {.trans_b = true, .products = products}), xs);
    if (v.wants(1)) r[1] = matmul(reshape(v.in(0), {rows, xs.back()}), dh, {.trans_a = true, .products = products});
  }
  if (v.wants(2)) r[2] = matmul(v.out(1) * scale, g, {.trans_a = true, .products = products});
  if (v.inputs() > 3 && v.wants(3)) r[3] = dy;
  return r;
}
Tensors Lora::compose(Inputs in) const {
  const Shape& xs = in[0].shape();
  const Tensor x = reshape(in[0], {rows_of(xs), xs.back()});
  const Tensor h = matmul(x, in[1], {.products = products});                    // (T, r)
  Tensor y = matmul(h * scale, in[2], {.products = products});  // (T, out)
  Shape shape = xs;
  shape.back() = in[2].size(1);
  y = reshape(y, shape);
  return {in.size() > 3 ? in[3] + y : y, h};
}
Tensor lora(const Tensor& x, const Tensor& a, const Tensor& b, double scale, const Tensor& base) {
  auto op = make<Lora>(scale, f32_products());
  return base ? emit1(std::move(op), {x, a, b, base}) : emit1(std::move(op), {x, a, b});
}
}  // namespace tg
