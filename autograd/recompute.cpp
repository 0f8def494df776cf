#include <tapegrad/autograd/backward.h>
#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>

#include <optional>
#include <unordered_set>

namespace tg {
namespace {
// (outputs..., inputs..., captured...) -> views of the outputs, computed without a tape.
struct Checkpoint : ViewOp<Checkpoint> {
  static constexpr auto kName = "checkpoint";
  RecomputeFn fn;
  std::optional<Rng> rng;
  MatmulPrecision products = matmul_precision();  // precision of the first run
  size_t outputs, inputs;
  std::vector<std::pair<Tensor, const Value*>> leaves;  // captured, and the values that they had
  Checkpoint(RecomputeFn f, std::optional<Rng> r, size_t out, size_t in)
      : fn(std::move(f)), rng(r), outputs(out), inputs(in) {}
  Layouts infer(Inputs in) const override {
    Layouts r;
    for (size_t k = 0; k < outputs; ++k) r.emplace_back(in[k].layout().view_of(k));
    return r;
  }
  Mask saves_in(Mask) const override { return outputs < 31 ? ~(mask_of(outputs) - 1) : mask_of(31); }
  Tensors vjp(const Vjp& v) const override {
    std::vector<Tensor> in, captured, grads;
    for (const auto& [leaf, value] : leaves)
      TG_CHECK(
          detail::value_of(leaf).get() == value, state,
          "[checkpoint] {} has a new value since the forward pass, so backward would compute another function. Call "
          "backward before assign() or an optimiser's step, or pass it as an input.",
          leaf);
    for (size_t i = outputs; i < v.inputs(); ++i) (i < outputs + inputs ? in : captured).push_back(v.in(i));
    for (size_t k = 0; k < outputs; ++k) grads.push_back(v.grad(k));
    const auto again = [&](Inputs x) {
      std::optional<Rng> r = rng;
      const MatmulPrecisionScope as_before(products);
      return fn(x, r ? &*r : nullptr);
    };
    Tensors r;
    for (size_t k = 0; k < outputs; ++k) r.emplace_back();
    for (auto& g : detail::pull_back(again, in, captured, grads)) r.emplace_back(std::move(g));
    return r;
  }
};
}  // namespace

Tensors recompute(RecomputeFn fn, Inputs in, Rng* rng) {
  if (!grad_enabled()) return fn(in, rng);
  const auto before = rng ? std::optional<Rng>(*rng) : std::nullopt;
  std::vector<Tensor> reads;
  Tensors y;
  {
    NoGradScope off;
    const detail::ReadsOfTracked noted(reads);
    std::optional<Rng> drawn = before;  // backward draws these again
    y = fn(in, drawn ? &*drawn : nullptr);
    TG_CHECK(!rng || rng->take(4 * (drawn->offset - before->offset)) == *before, state,
             "[checkpoint] another thread drew from the generator of the function that recompute() called. Give each "
             "thread its own: Rng::split().");
  }
  for (size_t k = 0; k < y.size(); ++k) {
    TG_CHECK(y[k], value, "[checkpoint] the function returned an empty tensor as output {}. Each must have a value.",
             k);
    if (y[k].requires_grad()) reads.push_back(y[k]);  // fn may return an input unchanged
  }
  std::vector<Tensor> all(y.begin(), y.end());
  all.insert(all.end(), in.begin(), in.end());
  std::unordered_set<uint64_t> seen;
  for (auto& t : in) seen.insert(t.id());
  const auto op = make_ref<Checkpoint>(std::move(fn), before, y.size(), in.size());
  for (auto& t : reads) {
    if (!seen.insert(t.id()).second) continue;
    all.push_back(t);
    if (!detail::on_tape(t)) op->leaves.emplace_back(t, detail::value_of(t).get());
  }
  y.clear();
  return emit(op, all);
}
}  // namespace tg
