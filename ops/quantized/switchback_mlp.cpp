#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <vector>

namespace tg {
namespace {
Tensor gelu_of(const Tensor& h, bool by_tanh) { return by_tanh ? gelu_tanh(h) : gelu(h); }
void check_narrow(std::string_view op, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::f32 || x.dtype() == DType::bf16, dtype,
           "[{}] got {}. It computes in f32 and bf16: use .to(DType::f32).", op, x);
}
}  // namespace

Layouts op::GeluQuantize::infer(Inputs in) const {
  check_narrow(kName, in[0]);
  return QuantizeRowwise(DType::f32).infer(in);
}
Tensors op::GeluQuantize::compose(Inputs in) const {
  const Quantized q = quantize_rowwise(gelu_of(in[0], by_tanh));
  return {q.values, q.absmax};
}
Layouts op::SwitchBackMlp::infer(Inputs in) const {
  check_narrow(kName, in[0]);
  TG_CHECK(mode == SwitchBackMode::global || mode == SwitchBackMode::vector_wise, value,
           "[switchback_mlp] the mode must be global or vector_wise. Call switchback_linear() twice for others.");
  const Tensor &fc = in[1], &proj = in[2];
  const bool bias = in.size() > 3;
  const Layout h = SwitchBack(mode).infer(bias ? std::vector{in[0], fc, in[3]} : std::vector{in[0], fc})[0];
  check_narrow(kName, proj);
  TG_CHECK(proj.ndim() == 2 && proj.shape()[1] == fc.shape()[0], shape,
           "[switchback_mlp] the layers are {} and {}. The second must be (out, {}): it takes the output of the first.",
           fc, proj, fc.shape()[0]);
  TG_CHECK(!bias || in[4].shape() == Shape{proj.shape()[0]}, shape,
           "[switchback_mlp] the second layer is {}, and its bias {}. The bias must have one element per row ({}).",
           proj, bias ? detail::describe(in[4]) : "none", proj.shape()[0]);
  const Shape y = h.shape.without_last().followed_by(proj.shape()[0]);
  return {contiguous_like(in[0], y), h};
}
Tensors op::SwitchBackMlp::compose(Inputs in) const {
  const auto bias = [&](size_t i) { return in.size() > 3 ? in[i] : Tensor(); };
  const DType t = in[0].dtype();
  const Tensor h = int8_linear(quantize_rowwise(in[0]), detail::quantize_weight(in[1], mode), bias(3), t);
  return {int8_linear(gelu_quantize_rowwise(h, by_tanh), detail::quantize_weight(in[2], mode), bias(4), t), h};
}
Tensors op::SwitchBackMlp::vjp(const Vjp& v) const {
  const Tensor x = detail::as_rows(v.in(0)), h = detail::as_rows(v.out(1));
  const auto weight_gradient = [&](const Tensor& g, const Tensor& of, size_t i) {
    return v.wants(i) ? matmul(g, of, {.trans_a = true}).to(v.in_dtype(i)) : Tensor();
  };
  const auto bias_gradient = [&](const Tensor& g, size_t i) {
    return v.inputs() > i && v.wants(i) ? sum(g, {0}).to(v.in_dtype(i)) : Tensor();
  };
  Tensor dh, proj, proj_bias;
  if (v.grad(0)) {
    const Tensor g = detail::as_rows(v.grad(0));
    const Tensor da = emit1(make_ref<SwitchBack>(mode, true), {g, transpose(v.in(2), 0, 1)});
    dh = emit1(by_tanh ? stateless<UnaryGrad<GeluTanh>>() : stateless<UnaryGrad<Gelu>>(), {h, da});
    if (v.wants(2)) proj = weight_gradient(g, gelu_of(h, by_tanh), 2);
    proj_bias = bias_gradient(g, 4);
  }
  if (v.grad(1)) {  // second derivatives
    const Tensor more = detail::as_rows(v.grad(1));
    dh = dh ? dh + more : more;
  }
  Tensor dx;
  if (v.wants(0)) dx = reshape(emit1(make_ref<SwitchBack>(mode, true), {dh, transpose(v.in(1), 0, 1)}), v.in_shape(0));
  Tensors r{dx, weight_gradient(dh, x, 1), proj};
  if (v.inputs() > 3) r.emplace_back(bias_gradient(dh, 3)), r.emplace_back(proj_bias);
  return r;
}

Quantized gelu_quantize_rowwise(const Tensor& h, bool by_tanh) {
  const Tensors r = emit(make_ref<op::GeluQuantize>(by_tanh), {&h, 1});
  return {r[0], r[1]};
}
Tensor switchback_mlp(const Tensor& x, const SwitchBackMlpLayers& l) {
  TG_CHECK(bool(l.fc_bias) == bool(l.proj_bias), value,
           "[switchback_mlp] one layer has a bias, and the other none. Pass both or none.");
  std::vector<Tensor> in{x, l.fc_weight, l.proj_weight};
  if (l.fc_bias) in.push_back(l.fc_bias), in.push_back(l.proj_bias);
  return std::move(emit(make_ref<op::SwitchBackMlp>(l.mode, l.by_tanh), in)[0]);
}
}  // namespace tg
