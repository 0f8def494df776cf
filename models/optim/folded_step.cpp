// AdamW::backward_and_step(). Backward is lazy: if a gradient is a matmul node, the step takes its operands, and the
// matmul never runs.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <optional>

namespace tg {
namespace {
template <class OpT> const OpT* is(const Node& n) { return dynamic_cast<const OpT*>(n.op.get()); }
Tensor read_by(const Edge& e) { return Tensor(make_ref<Variable>(e.id, e.value, false)); }
const Node* pending(const Value& v) { return v.producer && !v.producer->done ? v.producer.get() : nullptr; }

// The node that computes g, if it has not run; looks through reshapes.
const Node* maker_of(const Tensor& g) {
  const Node* n = pending(*g.value());
  while (n && is<op::Reshape>(*n)) n = pending(*n->in[0].value);
  return n;
}
std::optional<GradientProduct> product_of(const Node& n, DType dtype) {
  const auto* product = is<op::Matmul>(n);
  if (!product || product->o.precision != MatmulPrecision::highest) return {};
  const Tensor a = read_by(n.in[0]), b = read_by(n.in[1]);
  if (a.ndim() != 2 || b.ndim() != 2 || a.dtype() != dtype) return {};
  const auto transposed = [](const Tensor& t, bool turn) { return turn ? transpose(t, 0, 1) : t; };
  return GradientProduct{transposed(a, !product->o.trans_a), transposed(b, product->o.trans_b)};
}
// Whether n sums gradients, at least one of them a matmul.
bool is_sum_of_products(const Node& n) {
  const auto is_product = [](const Edge& e) {
    const Node* term = maker_of(read_by(e));
    return term && (is<op::Matmul>(*term) || is_sum_of_products(*term));
  };
  if (is<op::IndexSelectGrad>(n)) return n.in.size() == 3 && is_product(n.in[2]);
  return is<op::Binary<op::Add>>(n) && std::ranges::any_of(n.in, is_product);
}
// Sum of squares of a^T b, in f64.
Tensor square_sum(const GradientProduct& p) {
  const auto gram = [](const Tensor& t) {
    const Tensor x = t.to(DType::f64);
    return matmul(x, x, {.trans_b = true});
  };
  return sum(gram(p.a) * gram(p.b));
}

struct Folded {
  size_t entry;
  Tensor w;
  GradientProduct grad;
};
// Product that the step computes; empty: store the gradient.
std::optional<GradientProduct> folded_product(const std::string& name, const Tensor& grad, DType dtype,
                                              const FoldedStepOptions& o) {
  const Node* const made = maker_of(grad);
  if (!made || std::ranges::any_of(o.stored, [&](auto& pattern) { return detail::glob_matches(pattern, name); }))
    return {};
  TG_CHECK(!is_sum_of_products(*made), state,
           "[adamw] '{}' is used more than once, so its gradient is a sum of products. The step can fold in only a "
           "single product. List it in FoldedStepOptions::stored, or call backward() and step().",
           name);
  std::optional<GradientProduct> product = product_of(*made, dtype);
  if (product && product->a.size(0) > o.max_rows) product.reset();
  return product;
}
Tensor gradient_norm(const std::vector<Folded>& folded, const std::vector<Tensor>& stored, bool wide) {
  Tensor squares;
  const auto add_up = [&](const Tensor& x) { squares = squares ? squares + x : x; };
  for (const Folded& f : folded) add_up(square_sum(f.grad));
  if (!stored.empty()) {
    const Tensor norm = global_norm(stored).to(DType::f64);
    add_up(norm * norm);
  }
  return sqrt(squares).to(wide ? DType::f64 : DType::f32);
}
// A taped view of a weight prevents the in-place step: evaluates old weights' readers.
void read_old_weights(const std::vector<Folded>& folded, const detail::OptimizerStep& s) {
  const auto viewed = [](const Folded& f) { return f.w.materialized() && f.w.value()->storage.use_count() != 1; };
  if (std::ranges::none_of(folded, viewed)) return;
  std::vector<Tensor> first = s.grads;
  for (const Folded& f : folded) first.insert(first.end(), {f.grad.a, f.grad.b});
  if (s.norm) first.push_back(s.norm);
  eval(first);
}
}  // namespace

Tensor AdamW::backward_and_step(const Tensor& loss, FoldedStepOptions o) {
  TG_CHECK(o.clip_norm >= 0, value, "[adamw] clip_norm is {}. It must be more than 0, or 0 for no clipping.",
           o.clip_norm);
  for (const std::string& pattern : o.stored)
    TG_CHECK(std::ranges::any_of(entries(), [&](const Entry& e) { return detail::glob_matches(pattern, e.name); }),
             value,
             "[adamw] the pattern '{}' of `stored` matches none of the {} parameters. * stands for any characters.",
             pattern, entries().size());
  TG_CHECK(!partition(), state,
           "[adamw] backward_and_step() of a sharded optimiser: gradients must be stored for their sum over the ranks. "
           "Call backward(), GradientReducer::finish() and step().");
  for (const Entry& e : entries())
    TG_CHECK(!e.low, state, "[adamw] '{}' is split. backward_and_step() needs whole ones: call step().", e.name);
  const bool runs = !lazy_enabled();
  std::vector<Tensor> roots;
  {
    NoGradScope off;
    LazyScope lazy;
    const Step all = reached(backward(loss), o.missing_grad);
    const ProfileRange range(Phase::optimizer);
    NameScope here(name());
    std::vector<Folded> folded;
    Step s;
    for (size_t i = 0; i < all.which.size(); ++i) {
      const Entry& e = entries()[all.which[i]];
      if (auto product = folded_product(e.name, all.grads[i], e.w.dtype(), o))
        folded.push_back({all.which[i], e.w, std::move(*product)});
      else
        s.add(all, i);
    }
    if (o.clip_norm > 0) {
      const bool wide = std::ranges::any_of(all.grads, [](const Tensor& g) { return g.dtype() == DType::f64; });
      roots.push_back(s.norm = gradient_norm(folded, s.grads, wide)), s.max_norm = o.clip_norm;
    }
    if (runs) read_old_weights(folded, s);
    if (!s.which.empty()) update(s);
    for (const Folded& f : folded)
      moments_.step(f.entry, f.w, f.grad, s.norm, s.max_norm, clock(), s.which.empty() && &f == &folded.front());
    if (!detail::running_dry()) ++clock()->t;
    for (const size_t i : all.which) roots.push_back(entries()[i].w);
  }
  if (runs) eval(roots);
  return o.clip_norm > 0 ? roots.front() : Tensor();
}

}  // namespace tg
