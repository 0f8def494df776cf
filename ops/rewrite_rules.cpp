// Fusion rules of plans (core/plan/rewrite.h), and whether the result has the same bits.
#include <tapegrad/core/plan/rewrite.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/norm.h>

namespace tg {
namespace {
using Ops = std::span<const Op* const>;
using LayoutsIn = std::span<const Layout* const>;

const Pattern kAny{};
Pattern in_either_order(Pattern p) {
  p.either_order = true;
  return p;
}
Pattern with_more(Pattern p) {
  p.more = true;
  return p;
}

// norm(x + r), the same bits. The sum (residual stream) is an output too.
template <class Norm, class AddedNorm> OpPtr added_norm(Ops ops, LayoutsIn in) {
  const auto* norm = static_cast<const Norm*>(ops[0]);
  if (in[0]->shape != in[1]->shape) return nullptr;  // one is broadcast
  if (norm->to != in[1]->dtype) return nullptr;      // y would have r's dtype
  return make_ref<AddedNorm>(norm->eps, norm->to);
}
const Pattern kSum = made_by<op::Binary<op::Add>>({kAny, kAny});

// linear(x, w) + b. The bias is added before rounding: bf16 has other last bits, f64 and f32 the same.
OpPtr linear_with_bias(Ops ops, LayoutsIn in) {
  const auto* linear = static_cast<const op::Linear*>(ops[1]);
  if (linear->unrounded || in[2]->shape != Shape{in[1]->shape[0]}) return nullptr;
  return make_ref<op::Linear>(linear->precision);
}
// F(linear(x, w[, b])), the same bits. Not where the gradient reads F's input.
template <class F> OpPtr linear_then(Ops ops, LayoutsIn) {
  const auto* linear = static_cast<const op::Linear*>(ops[1]);
  return linear->unrounded ? nullptr : make_ref<op::LinearActivation<F>>(linear->precision);
}
// F(linear(x, w) + b): see linear_with_bias().
template <class F> OpPtr linear_with_bias_then(Ops ops, LayoutsIn in) {
  return in[2]->shape == Shape{in[1]->shape[0]} ? linear_then<F>(ops.subspan(1), in) : nullptr;
}

// x A B, scale a factor of x A B or of x A, plus a base. Sums are rounded once, and lora() scales x A, so last bits may
// differ. One pass over x must be faster than two GEMMs.
constexpr int64_t kLargestRank = 64;
OpPtr low_rank(const Op* scaled, const Op* outer, const Op* inner, LayoutsIn in) {
  const auto plain = [](const Op* op) {
    const MatmulOptions& o = static_cast<const op::Matmul*>(op)->o;
    return !o.trans_a && !o.trans_b && o.precision == MatmulPrecision::highest;
  };
  const Shape &x = in[0]->shape, &a = in[1]->shape, &b = in[2]->shape;
  const bool based = in.size() > 3, fits = a.size() == 2 && b.size() == 2 && a[1] <= kLargestRank;
  if (!plain(outer) || !plain(inner) || !fits) return nullptr;
  if (based && in[3]->shape != x.without_last().followed_by(b[1])) return nullptr;  // broadcast
  return make_ref<op::Lora>(static_cast<const op::BinaryScalar<op::Mul>*>(scaled)->s);
}
const Pattern kProductOfX = made_by<op::Matmul>({kAny, kAny});
const Pattern kProductScaled = made_by<op::BinaryScalar<op::Mul>>({made_by<op::Matmul>({kProductOfX, kAny})});
const Pattern kScaledProduct = made_by<op::Matmul>({made_by<op::BinaryScalar<op::Mul>>({kProductOfX}), kAny});
Pattern plus_base(const Pattern& p) { return in_either_order(made_by<op::Binary<op::Add>>({p, kAny})); }

const Rule kRules[] = {
    {"add_layer_norm",
     with_more(made_by<op::LayerNorm>({kSum})),
     {{0, 0}, {1, 0}, {0, 1}, {0, 2}},
     added_norm<op::LayerNorm, op::AddLayerNorm>},
    {"add_rms_norm",
     with_more(made_by<op::RmsNorm>({kSum})),
     {{0, 0}, {1, 0}, {0, 1}},
     added_norm<op::RmsNorm, op::AddRmsNorm>},
    {"lora_base",
     plus_base(kProductScaled),
     {{0, 0}, {3, 0}},
     [](Ops o, LayoutsIn in) { return low_rank(o[1], o[2], o[3], in); }},
    {"lora_base",
     plus_base(kScaledProduct),
     {{0, 0}, {3, 0}},
     [](Ops o, LayoutsIn in) { return low_rank(o[2], o[1], o[3], in); }},
    {"lora", kProductScaled, {{0, 0}, {2, 0}}, [](Ops o, LayoutsIn in) { return low_rank(o[0], o[1], o[2], in); }},
    {"lora", kScaledProduct, {{0, 0}, {2, 0}}, [](Ops o, LayoutsIn in) { return low_rank(o[1], o[0], o[2], in); }},
};
const Pattern kLinear = made_by<op::Linear>({kAny, kAny}),
              kBiased = in_either_order(made_by<op::Binary<op::Add>>({kLinear, kAny}));
template <class... F> std::vector<Rule> linear_rules(op::TypeList<F...>) {
  std::vector<Rule> r;
  (r.push_back({F::kName, made_by<op::Unary<F>>({kBiased}), {{0, 0}}, linear_with_bias_then<F>}), ...);
  (r.push_back({F::kName, made_by<op::Unary<F>>({with_more(kLinear)}), {{0, 0}}, linear_then<F>}), ...);
  r.push_back({"linear", kBiased, {{0, 0}}, linear_with_bias});
  return r;
}
const std::vector<Rule> kLinearRules = linear_rules(op::ActivationFns{});

[[maybe_unused]] const bool rules_known = register_rules(kRules) && register_rules(kLinearRules);
}  // namespace
}  // namespace tg
