#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/quantized/fp8.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <vector>

namespace tg {
namespace {
bool is_fp8(SwitchBackMode mode) { return mode == SwitchBackMode::fp8 || mode == SwitchBackMode::fp8_e4m3; }
}  // namespace

Quantized detail::quantize_weight(const Tensor& weight, SwitchBackMode mode) {
  return mode == SwitchBackMode::vector_wise ? quantize_rowwise(weight) : quantize_global(weight);
}
Layouts op::SwitchBack::infer(Inputs in) const {
  const Tensor &x = in[0], &w = in[1];
  for (const Tensor& t : in) detail::check_quantizable(kName, t);
  const Shape y = check::linear(kName, x, w, in.size() > 2 ? &in[2] : nullptr);
  Layouts r{contiguous_like(x, y)};
  if (mode == SwitchBackMode::memory_efficient) {
    r.emplace_back(contiguous_like(x, DType::i8));
    r.emplace_back(contiguous_like(x, x.shape().without_last(), DType::f32));
    r.emplace_back(contiguous_like(x, w.shape(), DType::i8));
    r.emplace_back(contiguous_like(x, {1}, DType::f32));
  }
  return r;
}
Tensors op::SwitchBack::compose(Inputs in) const {
  const Tensor bias = in.size() > 2 ? in[2] : Tensor();
  if (is_fp8(mode)) {
    const auto of_x = of_gradient && mode == SwitchBackMode::fp8 ? Fp8Format::e5m2 : Fp8Format::e4m3;
    return {fp8_linear(quantize_fp8(in[0], of_x), quantize_fp8(in[1]), bias, in[0].dtype())};
  }
  const Quantized x = quantize_rowwise(in[0]), w = detail::quantize_weight(in[1], mode);
  Tensors r{int8_linear(x, w, bias, in[0].dtype())};
  if (mode == SwitchBackMode::memory_efficient)
    for (const Tensor& t : {x.values, x.absmax, w.values, w.absmax}) r.emplace_back(t);
  return r;
}
Tensors op::SwitchBack::vjp(const Vjp& v) const {
  const bool lean = mode == SwitchBackMode::memory_efficient;
  const Tensor g = detail::as_rows(v.grad());
  const auto computable = [](const Tensor& t) { return t.dtype() == DType::f16 ? t.to(DType::f32) : t; };
  Tensor dx, dw;
  if (v.wants(0)) {
    dx = lean ? int8_linear(quantize_rowwise(g), {transpose(v.out(3), 0, 1), v.out(4)}, {}, g.dtype())
              : emit1(make_ref<op::SwitchBack>(mode, true), {g, transpose(v.in(1), 0, 1)});
    dx = reshape(dx, v.in_shape(0));
  }
  if (v.wants(1)) {
    const Tensor x = lean ? dequantize({v.out(1), v.out(2)}, g.dtype()) : v.in(0);
    dw = matmul(computable(g), computable(detail::as_rows(x)), {.trans_a = true}).to(v.in_dtype(1));
  }
  Tensors r{dx, dw};
  if (v.inputs() > 2) r.emplace_back(v.wants(2) ? sum(computable(g), {0}).to(v.in_dtype(2)) : Tensor());
  return r;
}
Tensor switchback_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, SwitchBackMode mode) {
  std::vector<Tensor> in{x, weight};
  if (bias) in.push_back(bias);
  return std::move(emit(make_ref<op::SwitchBack>(mode), in)[0]);
}
}  // namespace tg
