#include <tapegrad/autograd/custom_vjp.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/custom_gradient.h>

#include <algorithm>

namespace tg {
namespace {
// Never emitted: CustomGradient asks it for gradients.
struct WrittenGradient : Op {
  VjpFunction f;
  size_t outputs;
  WrittenGradient(VjpFunction g, size_t n) : Op(true, false), f(std::move(g)), outputs(n) {}
  std::string_view name() const override { return "custom_vjp"; }
  Layouts infer(Inputs) const override { return {}; }
  const void* type() const override { return nullptr; }
  bool supports(Backend) const override { return false; }
  void run(Bufs, Bufs, Context&) const override {}
  Mask saves_in(Mask) const override { return ~Mask(0); }
  Mask saves_out(Mask) const override { return ~Mask(0); }
  Tensors vjp(const Vjp& v) const override {
    std::vector<Tensor> in, out, grads;
    for (size_t i = 0; i < v.inputs(); ++i) in.push_back(v.in(i));
    for (size_t k = 0; k < outputs; ++k) out.push_back(v.out(k)), grads.push_back(v.grad(k));
    const std::vector<Tensor> made = f(in, out, grads);
    TG_CHECK(made.size() == in.size(), value,
             "[custom_vjp] the vjp returns {} gradients for {} inputs. Return one per input, empty where there is "
             "none.",
             made.size(), in.size());
    Tensors r;
    for (size_t i = 0; i < made.size(); ++i) {
      TG_CHECK(!made[i] || made[i].shape() == in[i].shape(), shape,
               "[custom_vjp] gradient {} is {}, and the input is {}. Their shapes must be equal.", i, made[i], in[i]);
      r.emplace_back(v.wants(i) ? made[i] : Tensor());
    }
    return r;
  }
};
}  // namespace

TensorFunction custom_vjp(TensorFunction f, VjpFunction vjp) {
  TG_CHECK(f && vjp, value, "[custom_vjp] a function is empty. Pass the function and its vjp.");
  return [f = std::move(f), vjp = std::move(vjp)](Inputs in) {
    if (!grad_enabled() || !std::ranges::any_of(in, &Tensor::requires_grad)) return f(in);
    std::vector<Tensor> all(in.begin(), in.end());
    {
      NoGradScope off;
      for (Tensor& y : f(in)) all.push_back(std::move(y));
    }
    const Tensors r =
        emit(make_ref<op::CustomGradient>(make_ref<WrittenGradient>(vjp, all.size() - in.size()), in.size()), all);
    return std::vector<Tensor>(r.begin(), r.end());
  };
}
}  // namespace tg
