#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/evaluate.h>
#include <tapegrad/ops/create.h>
#include <tapegrad/ops/pointwise.h>

#include <algorithm>
#include <optional>

namespace tg {
namespace {
void check_tracked(const Tensor& t) {
  TG_CHECK(
      t.requires_grad(), state,
      "[backward] {} does not depend on a tensor that requires a gradient. Call requires_grad_() on a leaf before the "
      "forward pass, and leave no NoGrad open.",
      t);
}
struct Tape {
  std::vector<Ref<Node>> nodes;                 // newest first
  std::unordered_map<uint64_t, uint32_t> uses;  // contributions still to come, per id
};
Tape collect(const Tensor& output) {
  Tape t;
  const uint64_t mark = detail::next_mark();
  auto visit = [&](const Ref<Node>& n) {
    if (!n || !n->tracked || n->mark == mark) return;
    n->mark = mark;
    t.nodes.push_back(n);
  };
  visit(output.value()->producer);
  for (size_t k = 0; k < t.nodes.size(); ++k) {
    const Ref<Node> n = t.nodes[k];
    TG_CHECK(
        !n->released, state,
        "[backward] [{}] was released by an earlier backward. Pass {{.retain_graph = true}} to that one.\n    in {}",
        n->op->name(), n->scope->path());
    for (size_t i = 0; i < n->in.size(); ++i) {
      if (!(n->tracked & bit(i))) continue;
      ++t.uses[n->in[i].id];
      visit(n->in[i].producer);
    }
  }
  std::sort(t.nodes.begin(), t.nodes.end(), [](auto& a, auto& b) { return a->seq > b->seq; });
  return t;
}
Tensors run_vjp(Node& n, Inputs grads) {
  InScope scope(n.scope);  // its gradient ops belong to the layer of the forward op
  try {
    return n.op->vjp(Vjp(n, grads));
  } catch (const Error& e) {
    throw detail::with_scope(e, n.scope);
  }
}
// What a hook or a vjp hands back must look like the gradient that it stands for.
void check_like(std::string_view who, const Tensor& g, const Shape& shape, DType dtype, Device device) {
  TG_CHECK(g.shape() == shape && g.dtype() == dtype && g.device() == device, shape,
           "[{}] returned {} for a gradient of {} {}. Shape, dtype and device must be those of the tensor.", who, g,
           shape, dtype);
}
void call_hooks(const Hooks* hooks, Tensor& g) {
  if (!hooks) return;
  for (auto& hook : hooks->list)
    if (Tensor t = hook(g)) {
      check_like("on_grad", t, g.shape(), g.dtype(), g.device());
      g = t;
    }
}
// Adds gin to the gradients of n's inputs; calls the hooks of those that are complete.
void distribute(const Node& n, const Tensors& gin, Tape& tape, std::unordered_map<uint64_t, Tensor>& grads) {
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Edge& e = n.in[i];
    if (!(n.tracked & bit(i))) continue;
    if (i < gin.size() && gin[i]) {
      check_like(n.op->name(), gin[i], e.shape, e.dtype, n.out[0].layout.device);
      auto [it, first] = grads.try_emplace(e.id, gin[i]);
      if (!first) it->second = add(it->second, gin[i]);
    }
    if (--tape.uses[e.id] != 0 || !e.hooks) continue;
    if (auto it = grads.find(e.id); it != grads.end()) call_hooks(e.hooks.get(), it->second);
  }
}
}  // namespace

GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions opt) {
  check_tracked(output);
  TG_CHECK(grad.shape() == output.shape() && grad.dtype() == output.dtype(), shape,
           "[backward] the output is {}, its gradient {}. Shapes and dtypes must agree.", output, grad);
  Tape tape = collect(output);
  std::optional<NoGrad> off;
  if (!opt.create_graph) off.emplace();
  GradMap result;
  auto& grads = result.map();
  call_hooks(output.variable()->hooks.get(), grads[output.id()] = grad);
  for (auto& n : tape.nodes) {
    Tensors g;
    bool any = false;
    for (size_t i = 0; i < n->out.size(); ++i) {
      auto slot = grads.extract(n->id(i));
      any |= !slot.empty();
      g.emplace_back(slot.empty() ? Tensor() : std::move(slot.mapped()));
    }
    Tensors gin;
    if (any) gin = run_vjp(*n, {g.data(), g.size()});
    g.clear();
    distribute(*n, gin, tape, grads);
    if (!opt.retain_graph && !opt.create_graph) n->release();  // frees what was saved as we go
    n = nullptr;
  }
  return result;
}
GradMap backward(const Tensor& loss, BackwardOptions opt) {
  TG_CHECK(loss, value, "[backward] got an empty tensor. Pass the loss.");
  TG_CHECK(loss.numel() == 1, shape,
           "[backward] starts from one number, not from {}. Take sum() first, or pass a gradient.", loss);
  check_tracked(loss);
  return backward(loss, ones_like(loss), opt);
}
}  // namespace tg
