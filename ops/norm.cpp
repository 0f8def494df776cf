#include <tapegrad/ops/check.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/reduce.h>

#include <cmath>

namespace tg {
namespace {
Layout statistic(const Tensor& x) {
  const Shape& s = x.shape();
  return Layout::contiguous(Shape(s.begin(), s.end() - 1), x.dtype() == DType::f64 ? DType::f64 : DType::f32,
                            x.device());
}
Layout like(const Tensor& x) { return Layout::contiguous(x.shape(), x.dtype(), x.device()); }

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
  if (wants.dx) l.emplace_back(like(x));
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
NormWants wants_of(const Vjp& v) { return {v.wants(0), v.inputs() > 1 && v.wants(1), v.inputs() > 2 && v.wants(2)}; }
}  // namespace

Layouts LayerNorm::infer(Inputs in) const {
  check_norm(kName, in, eps);
  return {like(in[0]), statistic(in[0]), statistic(in[0])};
}
Tensors LayerNorm::vjp(const Vjp& v) const {
  const NormWants wants = wants_of(v);
  if (!wants.dx && !wants.dw) return {Tensor(), Tensor(), sum_to(v.grad(), v.in_shape(2))};
  SmallVec<Tensor, 5> in{v.grad(), v.in(0), v.out(1), v.out(2)};
  if (wants.dx && v.inputs() > 1) in.emplace_back(v.in(1));
  return spread(emit(make<LayerNormGrad>(wants), {in.data(), in.size()}), wants);
}
Layouts LayerNormGrad::infer(Inputs in) const { return gradients(in[1], wants); }

Layouts RmsNorm::infer(Inputs in) const {
  check_norm(kName, in, eps);
  return {like(in[0]), statistic(in[0])};
}
Tensors RmsNorm::vjp(const Vjp& v) const {
  const NormWants wants = wants_of(v);
  SmallVec<Tensor, 4> in{v.grad(), v.in(0), v.out(1)};
  if (wants.dx && v.inputs() > 1) in.emplace_back(v.in(1));
  return spread(emit(make<RmsNormGrad>(wants), {in.data(), in.size()}), wants);
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
