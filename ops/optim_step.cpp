#include <tapegrad/ops/check.h>
#include <tapegrad/ops/optim_step.h>

#include <cmath>

namespace tg {
namespace {
constexpr std::string_view kRoles[] = {"weight", "first moment", "second moment", "gradient"};

void check_numbers(const AdamWOptions& o, double lr, int64_t t) {
  TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[adamw_step] lr is {}. It must be 0 or more, and finite.", lr);
  TG_CHECK(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1, value,
           "[adamw_step] beta1 is {}, beta2 is {}. Both must be in [0, 1).", o.beta1, o.beta2);
  TG_CHECK(o.eps > 0 && std::isfinite(o.eps), value, "[adamw_step] eps is {}. It must be above 0, and finite.", o.eps);
  TG_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay), value,
           "[adamw_step] weight_decay is {}. It must be 0 or more, and finite.", o.weight_decay);
  TG_CHECK(t >= 1, value, "[adamw_step] the step's number is {}. Steps count from 1.", t);
}
}  // namespace

Layouts GlobalNorm::infer(Inputs in) const {
  for (const Tensor& x : in) check::computes(kName, x);
  return {Layout::contiguous({}, DType::f32, in[0].device())};
}
Tensor global_norm(Inputs grads) {
  TG_CHECK(!grads.empty(), value, "[global_norm] there are no tensors. Pass at least one.");
  return emit(stateless<GlobalNorm>(), grads)[0];
}

Layouts AdamWStep::infer(Inputs in) const {
  const Tensor& w = in[0];
  TG_CHECK(w.dtype() == DType::f64 || w.dtype() == DType::f32, dtype,
           "[adamw_step] the weight is {}: its small steps would be rounded away. Keep weights in f32 or f64.", w);
  for (size_t i = 1; i < 4; ++i) {
    TG_CHECK(in[i].shape() == w.shape(), shape,
             "[adamw_step] the {} is {}, the weight is {}. Their shapes must be equal.", kRoles[i], in[i], w);
    check::same_dtype(kName, w, in[i]);
  }
  if (in.size() > 4)
    TG_CHECK(in[4].ndim() == 0 && in[4].dtype() == DType::f32, shape,
             "[adamw_step] the norm is {}. It must be () f32, as global_norm() makes it.", in[4]);
  const Layout l = contiguous_like(w);
  return {l, l, l};
}
void adamw_step(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const AdamWOptions& o, double lr,
                int64_t t, const Tensor& norm, double max_norm) {
  const Tensor in[] = {w, m, v, grad, norm};
  for (size_t i = 0; i < 4; ++i)
    TG_CHECK(in[i], value, "[adamw_step] the {} is an empty tensor. Pass a tensor that has a value.", kRoles[i]);
  for (size_t i = 0; i < 3; ++i) {
    const auto& producer = in[i].value()->producer;
    TG_CHECK(!producer || !producer->tape(), state,
             "[adamw_step] the {}, {}, was computed on the tape. Only leaves are updated: pass one, or detach().",
             kRoles[i], in[i]);
    TG_CHECK(in[i].id() != in[(i + 1) % 3].id(), value,
             "[adamw_step] the {} and the {} are the same tensor, {}. Each needs its own.", kRoles[i],
             kRoles[(i + 1) % 3], in[i]);
  }
  check_numbers(o, lr, t);
  TG_CHECK(norm ? max_norm > 0 : max_norm == 0, value,
           "[adamw_step] max_norm is {}, and a norm was {}given. Pass both, with max_norm above 0, or neither.",
           max_norm, norm ? "" : "not ");
  const NoGrad off;
  const Tensor inputs[] = {w, m, v, grad.contiguous(), norm};
  emit_update(make<AdamWStep>(o, lr, t, max_norm), {inputs, norm ? size_t(5) : size_t(4)}, 3);
}
}  // namespace tg
