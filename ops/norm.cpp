#include <tapegrad/ops/check.h>
#include <tapegrad/ops/convert.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

namespace tg {
namespace {
Layout statistic(const Tensor& x) {
  const Shape& s = x.shape();
  return Layout::contiguous(Shape(s.begin(), s.end() - 1), x.dtype() == DType::f64 ? DType::f64 : DType::f32,
                            x.device());
}

void check_norm(std::string_view op, Inputs in, double eps) {
  static constexpr std::string_view kRoles[] = {"x", "weight", "bias"};
  const Tensor& x = in[0];
  check::ndim_at_least(op, x, 1);
  check::computes(op, x);
  TG_CHECK(eps >= 0 && std::isfinite(eps), value, "[{}] eps is {}. It must be 0 or more, and finite.", op, eps);
  for (size_t i = 1; i < in.size(); ++i) {
    check::same_dtype(op, x, in[i]);
    TG_CHECK(in[i].shape() == Shape{x.shape().back()}, shape,
             "[{}] {} is {}, x is {}. The {} must have one element per column of x: shape ({}).", op, kRoles[i], in[i],
             x, kRoles[i], x.shape().back());
  }
}
Layouts gradients(const Tensor& x, NormWants wants) {
  const Layout column = Layout::contiguous({x.shape().back()}, x.dtype(), x.device());
  Layouts l;
  if (wants.dx) l.emplace_back(contiguous_like(x));
  if (wants.dw) l.emplace_back(column);
  if (wants.db) l.emplace_back(column);
  return l;
}
Tensors spread(Tensors made, NormWants wants) {  // back to one place per input
  Tensors r;
  size_t next = 0;
  for (bool want : {wants.dx, wants.dw, wants.db}) r.emplace_back(want ? made[next++] : Tensor());
  return r;
}
Tensor as_column(const Tensor& statistic) {  // (...) -> (..., 1)
  Shape s = statistic.shape();
  s.push_back(1);
  return reshape(statistic, s);
}
// The gradients out of plain ops, of an x with its mean taken off: the formulas of the kernel.
Tensors composed(const Tensor& dy, const Tensor& centred, const Tensor& rstd, const Tensor& weight, NormWants wants,
                 bool has_mean, DType to) {
  const auto n = double(std::max<int64_t>(1, dy.shape().back()));
  const Shape column{dy.shape().back()};
  const Tensor h = centred * rstd;
  Tensors r;
  if (wants.dx) {
    const Tensor g = weight ? dy * weight : dy;
    Tensor along = g - h * (row_sum(g * h) / n);
    if (has_mean) along = along - row_sum(g) / n;
    r.emplace_back((along * rstd).to(to));
  }
  if (wants.dw) r.emplace_back(sum_to(dy * h, column).to(to));
  if (wants.db) r.emplace_back(sum_to(dy, column).to(to));
  return r;
}
// What flows into x through the statistics, which are outputs too: only a second backward reads them. d mean = 1 / n,
// d rstd = -rstd^3 centred / n.
Tensor through_statistics(const Tensor& centred, const Tensor& rstd, const Tensor& dmean, const Tensor& drstd) {
  const auto n = double(centred.shape().back());
  Tensor dx;
  if (drstd) dx = centred * (rstd * rstd * rstd * as_column(drstd) / -n);
  if (!dmean) return dx;
  const Tensor even = expand(as_column(dmean) / n, centred.shape());
  return dx ? dx + even : even;
}
Tensor plus(const Tensor& dx, const Tensor& more, DType to) { return dx ? dx + more.to(to) : more.to(to); }
NormWants wants_of(const Vjp& v) { return {v.wants(0), v.inputs() > 1 && v.wants(1), v.inputs() > 2 && v.wants(2)}; }
}  // namespace

Layouts LayerNorm::infer(Inputs in) const {
  check_norm(kName, in, eps);
  return {contiguous_like(in[0]), statistic(in[0]), statistic(in[0])};
}
Tensors LayerNorm::vjp(const Vjp& v) const {
  const NormWants wants = wants_of(v);
  Tensors r{Tensor(), Tensor(), Tensor()};
  if (v.grad() && !wants.dx && !wants.dw) {
    r[2] = sum_to(v.grad(), v.in_shape(2));
  } else if (v.grad()) {
    SmallVec<Tensor, 5> in{v.grad(), v.in(0), v.out(1), v.out(2)};
    if (wants.dx && v.inputs() > 1) in.emplace_back(v.in(1));
    r = spread(emit(make<LayerNormGrad>(wants), {in.data(), in.size()}), wants);
  }
  if (wants.dx && (v.grad(1) || v.grad(2))) {
    const Tensor centred = widened(v.in(0)) - as_column(v.out(1));
    r[0] = plus(r[0], through_statistics(centred, as_column(v.out(2)), v.grad(1), v.grad(2)), v.in_dtype(0));
  }
  return r;
}
Tensors LayerNormGrad::compose(Inputs in) const {
  const Tensor weight = in.size() > 4 ? widened(in[4]) : Tensor();
  return composed(widened(in[0]), widened(in[1]) - as_column(in[2]), as_column(in[3]), weight, wants, true,
                  in[1].dtype());
}
Layouts LayerNormGrad::infer(Inputs in) const { return gradients(in[1], wants); }

Layouts RmsNorm::infer(Inputs in) const {
  check_norm(kName, in, eps);
  return {contiguous_like(in[0]), statistic(in[0])};
}
Tensors RmsNorm::vjp(const Vjp& v) const {
  const NormWants wants = wants_of(v);
  Tensors r{Tensor(), Tensor(), Tensor()};
  if (v.grad()) {
    SmallVec<Tensor, 4> in{v.grad(), v.in(0), v.out(1)};
    if (wants.dx && v.inputs() > 1) in.emplace_back(v.in(1));
    r = spread(emit(make<RmsNormGrad>(wants), {in.data(), in.size()}), wants);
  }
  if (wants.dx && v.grad(1))
    r[0] = plus(r[0], through_statistics(widened(v.in(0)), as_column(v.out(1)), {}, v.grad(1)), v.in_dtype(0));
  return r;
}
Tensors RmsNormGrad::compose(Inputs in) const {
  const Tensor weight = in.size() > 3 ? widened(in[3]) : Tensor();
  return composed(widened(in[0]), widened(in[1]), as_column(in[2]), weight, wants, false, in[1].dtype());
}
Layouts RmsNormGrad::infer(Inputs in) const { return gradients(in[1], wants); }

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  TG_CHECK(weight || !bias, value,
           "[layer_norm] there is a bias, {}, but no weight. A shift needs a scale. Pass a weight of ones.", bias);
  const Tensor in[] = {x, weight, bias};
  return emit(make<LayerNorm>(eps), {in, size_t(1) + bool(weight) + bool(bias)})[0];
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor in[] = {x, weight};
  return emit(make<RmsNorm>(eps), {in, size_t(1) + bool(weight)})[0];
}
}  // namespace tg
