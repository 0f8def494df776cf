#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace tg {
namespace {
void check_tracked(const Tensor& t) {
  TG_CHECK(t.requires_grad(), state,
           "[backward] {} does not depend on a tensor that requires a gradient. Call requires_grad_() on a leaf before "
           "the forward pass, and leave no NoGradScope open and no adapter merged. If it is made of a gradient, pass "
           "{{.create_graph = true}} to the backward() or grad() of that.",
           t);
}
using Ids = std::unordered_set<uint64_t>;
// Nodes of one backward: other threads may extend the tape meanwhile.
struct Tape {
  std::vector<Ref<Node>> nodes;                 // newest first
  std::unordered_map<uint64_t, uint32_t> uses;  // missing contributions, by id
  const Ids ends;                               // treated as leaves without hooks
  Tape(Inputs outputs, Ids stops) : ends(std::move(stops)) {
    const detail::WritesValues alone;
    const uint64_t mark = detail::next_mark();
    auto visit = [&](const Ref<Node>& n, uint64_t id) {
      if (!n || !n->tracked || n->mark == mark || ends.contains(id)) return;
      n->mark = mark;
      nodes.push_back(n);
    };
    for (auto& o : outputs) visit(o.value()->producer, o.id());
    for (size_t k = 0; k < nodes.size(); ++k) {
      const Ref<Node> n = nodes[k];
      alone.check_unused(*n);
      if (n->released)
        throw detail::with_scope(
            Error(Error::Kind::state, fmt::format("[backward] [{}] was released by an earlier backward. Pass "
                                                  "{{.retain_graph = true}} to that one.",
                                                  n->op->name())),
            n->scope);
      for (auto& e : n->in) {
        if (!e.tracked) continue;
        ++uses[e.id];
        visit(e.producer, e.id);
      }
    }
    for (const auto& n : nodes) alone.claim(*n);
    std::sort(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a->seq > b->seq; });
  }
  ~Tape() {
    for (const auto& n : nodes)
      if (n) detail::leave(*n);
  }
  Tape(const Tape&) = delete;
};
Tensors vjp_of(const Op& op, const Vjp& v, Inputs grads) {
  if (op.has_vjp || !op.composes) return op.vjp(v);
  std::vector<Tensor> in;
  for (size_t i = 0; i < v.inputs(); ++i) in.push_back(v.in(i));
  return detail::pull_back([&op](Inputs x) { return op.compose(x); }, in, {}, grads);
}
using Gradients = std::map<uint64_t, Tensor>;
// For Vjp::take_accumulated(). A taken gradient leaves `all`; vjp()'s result replaces it.
struct SumsSoFar final : Vjp::Accumulators {
  explicit SumsSoFar(Gradients& g) : all(g) {}
  Tensor take(const Edge& e, DType dtype) override {
    const auto it = all.find(e.id);
    if (!e.tracked || it == all.end() || e.dtype != dtype) return {};
    const Tensor sum = it->second.to(dtype);
    all.erase(it);
    return sum;
  }
  Gradients& all;
};
Tensors run_vjp(Node& n, Inputs grads, bool last, Gradients& all) {
  const detail::EmitInScope scope(n.scope);  // gradient ops are of the forward op's layer
  SumsSoFar sums(all);
  try {
    Tensors made = vjp_of(*n.op, Vjp(n, grads, last, &sums), grads);
    for (size_t i = made.size(); i < n.in.size(); ++i)
      TG_CHECK(!n.in[i].tracked, value,
               "[{}] vjp returned {} gradient(s) for {} inputs, and input {} requires one. Return one per input.",
               n.op->name(), made.size(), n.in.size(), i);
    return made;
  } catch (const Error& e) {
    throw detail::with_scope(e, n.scope);
  }
}
// Hooks and vjps keep the layout.
void check_like(std::string_view who, const Tensor& g, const Shape& shape, DType dtype, Device device) {
  TG_CHECK(g.shape() == shape && g.dtype() == dtype && g.device() == device, shape,
           "[{}] returned {} for a gradient of {} {}. Shape, dtype and device must be those of the tensor.", who, g,
           shape, dtype);
}
void call_hooks(const Ref<Hooks> hooks, Tensor& g) {
  if (!hooks) return;
  std::vector<const Hook*> now;  // hooks added by hooks run from the next gradient on
  {
    const std::lock_guard lock(hooks->adding);
    for (const Hook& f : hooks->list) now.push_back(&f);
  }
  for (const Hook* f : now)
    if (Tensor t = (*f)(g)) {
      check_like("on_grad", t, g.shape(), g.dtype(), g.device());
      g = t;
    }
}
// Tensor as a separate node of the tape.
Tensor view_of(const Tensor& t) { return emit1(make_ref<op::Reshape>(t.shape(), t.strides()), {t}); }
void accumulate(Gradients& grads, uint64_t id, DType dtype, const Tensor& g) {
  auto [it, first] = grads.try_emplace(id, g);
  if (!first) it->second = it->second.to(dtype) + g.to(dtype);
}
// GradMap::native() keeps the bf16 gradient of a cast.
bool is_narrow(const Tensor& g, const Edge& e) { return g.dtype() == DType::bf16 && e.dtype == DType::f32; }
// Accumulates gin; hooks get complete gradients.
void distribute(const Node& n, const Tensors& gin, Tape& tape, Gradients& grads, const BackwardOptions& o) {
  const bool is_cast = n.op->type() == &Kernels<op::Cast>::table;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Edge& e = n.in[i];
    if (!e.tracked) continue;
    if (i < gin.size() && gin[i]) {
      const bool narrow = is_narrow(gin[i], e), kept = narrow && !e.producer && !o.create_graph;
      const Tensor g = (is_cast || narrow) && !kept ? gin[i].to(e.dtype) : gin[i];
      check_like(n.op->name(), g, e.shape, kept ? g.dtype() : e.dtype, n.out[0].layout.device);
      accumulate(grads, e.id, e.dtype, g);
    }
    if (--tape.uses[e.id] != 0 || tape.ends.contains(e.id)) continue;
    const auto it = grads.find(e.id);
    if (it == grads.end()) continue;
    call_hooks(e.hooks, it->second);
    if (!o.on_leaf_grad || e.producer) continue;
    const Layout was = it->second.layout();
    o.on_leaf_grad(e.id, it->second);
    if (it->second)
      check_like("on_leaf_grad", it->second, was.shape, was.dtype, was.device);
    else
      grads.erase(it);
  }
}
void start(Inputs outputs, Inputs given, const Tape& tape, Gradients& grads) {
  for (size_t k = 0; k < outputs.size(); ++k) accumulate(grads, outputs[k].id(), outputs[k].dtype(), given[k]);
  for (auto& o : outputs) {  // outputs that other outputs read: once complete
    if (tape.uses.contains(o.id()) || tape.ends.contains(o.id())) continue;
    if (auto it = grads.find(o.id()); it != grads.end()) call_hooks(o.variable()->hooks, it->second);
  }
}
// Gradients of leaves, of `ends`, where the walk stops, and of `kept`, where it continues.
GradMap walk(Inputs outputs, Inputs given, Ids ends, BackwardOptions opt, const Ids& kept = {}) {
  Tape tape(outputs, std::move(ends));
  std::optional<NoGradScope> off;
  std::optional<EnableGradScope> on;
  opt.create_graph ? void(on.emplace()) : void(off.emplace());
  GradMap result;
  auto& grads = result.map();
  start(outputs, given, tape, grads);
  for (auto& n : tape.nodes) {
    Tensors g;
    bool any = false;
    for (size_t i = 0; i < n->out.size(); ++i) {
      const auto at = grads.find(n->id(i));
      any |= at != grads.end();
      g.emplace_back(at != grads.end() ? at->second : Tensor());
      if (at != grads.end() && !kept.contains(n->id(i))) grads.erase(at);
    }
    n->drop_recomputed();  // readers are newer
    Tensors gin;
    const bool last = !opt.retain_graph && !opt.create_graph;
    if (any) gin = run_vjp(*n, {g.data(), g.size()}, last, grads);
    g.clear();
    distribute(*n, gin, tape, grads, opt);
    if (last) n->release();  // frees saved values early
    detail::leave(*n);
    n = nullptr;
  }
  return result;
}
GradMap checked_walk(Inputs outputs, Inputs given, BackwardOptions opt, const Ids& kept = {}) {
  TG_CHECK(outputs.size() == given.size() && !outputs.empty(), value,
           "[backward] got {} output(s) and {} gradient(s). There must be one for each, and at least one.",
           outputs.size(), given.size());
  std::vector<Tensor> from, grads;
  for (size_t k = 0; k < outputs.size(); ++k) {
    TG_CHECK(outputs[k], value, "[backward] output {} is an empty tensor. Pass tensors that have a value.", k);
    if (!given[k]) continue;
    check_tracked(outputs[k]);
    TG_CHECK(given[k].shape() == outputs[k].shape() && given[k].dtype() == outputs[k].dtype(), shape,
             "[backward] the output is {}, its gradient {}. Shapes and dtypes must agree.", outputs[k], given[k]);
    from.push_back(outputs[k]);
    grads.push_back(given[k]);
  }
  return walk(from, grads, {}, opt, kept);
}
GradMap backward_from(const Tensor& loss, BackwardOptions opt, const Ids& kept) {
  TG_CHECK(loss, value, "[backward] got an empty tensor. Pass the loss.");
  TG_CHECK(loss.numel() == 1, shape,
           "[backward] starts from one number, not from {}. Take sum() first, or pass a gradient.", loss);
  check_tracked(loss);
  const ProfileRange range(Phase::backward);
  const Tensor one = ones_like(loss);
  return checked_walk({&loss, 1}, {&one, 1}, opt, kept);
}
}  // namespace

Tensor GradMap::operator[](const At& at) const {
  const Tensor& t = at.tensor;
  const Tensor g = native(t);
  if (g) return g.to(t.dtype());
  const Ref<Value> now = detail::value_of(t);
  detail::called_at(at.where, [&] {
    TG_CHECK(!now->tracked, state,
             "[backward] a gradient is asked of {}, a result of [{}]. Only leaves keep theirs. Update a leaf in place, "
             "w.assign(...) under NoGradScope; or call grad() for intermediates.",
             t, now->producer->op->name());
  });
  detail::t_unreached = at.where;
  return g;
}
Tensor GradMap::native(const Tensor& t) const {
  const auto it = map_.find(t.id());
  return it == map_.end() ? Tensor() : it->second;
}
bool GradMap::contains(const Tensor& t) const { return map_.contains(t.id()); }
GradMap& GradMap::operator+=(const GradMap& other) {
  for (auto& [id, g] : other.map_) {
    Tensor& sum = map_[id];
    sum = sum ? widened(sum) + widened(g) : g;
  }
  return *this;
}
GradMap& GradMap::operator*=(double s) {
  for (auto& [id, g] : map_) g = widened(g) * s;
  return *this;
}

GradMap backward(Inputs outputs, Inputs given, BackwardOptions opt) {
  const ProfileRange range(Phase::backward);
  return checked_walk(outputs, given, opt);
}
GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions opt, const std::source_location& where) {
  return detail::called_at(where, [&] {
    TG_CHECK(grad, value, "[backward] the gradient is an empty tensor. Pass one of the output's shape.");
    return backward({&output, 1}, {&grad, 1}, opt);
  });
}
GradMap backward(const Tensor& loss, BackwardOptions opt, const std::source_location& where) {
  return detail::called_at(where, [&] { return backward_from(loss, opt, {}); });
}
namespace {
Ids ids_of(Inputs all) {
  Ids ids;
  for (const Tensor& t : all) ids.insert(t.id());
  return ids;
}
std::vector<Tensor> gradients_of(Inputs of, const GradMap& grads) {
  std::vector<Tensor> r;
  for (size_t i = 0; i < of.size(); ++i) {
    r.push_back(grads[of[i]]);
    TG_CHECK(r.back(), missing_gradient,
             "[grad] no output depends on tensor {}, {}. Compute one from it, and let it require a gradient before the "
             "forward pass.",
             i, of[i]);
  }
  return r;
}
}  // namespace
std::vector<Tensor> grad(const Tensor& loss, Inputs of, BackwardOptions opt) {
  return gradients_of(of, backward_from(loss, opt, ids_of(of)));
}
std::vector<Tensor> grad(Inputs outputs, Inputs of, Inputs grads, BackwardOptions opt) {
  const ProfileRange range(Phase::backward);
  return gradients_of(of, checked_walk(outputs, grads, opt, ids_of(of)));
}
std::function<ValueAndGrad(Inputs)> value_and_grad(std::function<Tensor(Inputs)> f, BackwardOptions opt) {
  TG_CHECK(f, value, "[value_and_grad] the function is empty. Pass one that can be called.");
  return [f = std::move(f), opt](Inputs in) {
    std::vector<Tensor> x(in.begin(), in.end());
    EnableGradScope on;
    Ids kept;
    for (Tensor& t : x) {
      t = t.requires_grad() ? view_of(t) : t.detach().requires_grad_();
      kept.insert(t.id());
    }
    const Tensor value = f(x);
    const GradMap grads = backward_from(value, opt, kept);
    ValueAndGrad r{opt.create_graph ? value : value.detach(), {}};
    for (const Tensor& t : x) r.grads.push_back(grads.contains(t) ? grads[t] : zeros_like(t));
    return r;
  };
}

Tensors detail::pull_back(const std::function<Tensors(Inputs)>& f, Inputs in, Inputs captured, Inputs grads) {
  std::vector<Tensor> x(in.begin(), in.end());
  Ids ends;
  for (auto& t : captured) ends.insert(t.id());
  const bool create = grad_enabled();
  EnableGradScope on;
  for (auto& t : x)  // equal inputs have separate gradients
    if (!ends.insert(t.id()).second) t = view_of(t), ends.insert(t.id());
  Tensors y = f(x);
  TG_CHECK(y.size() == grads.size(), internal,
           "[backward] a function that returned {} outputs returns {} when it is recomputed. It must do the same "
           "each time.",
           grads.size(), y.size());
  std::vector<Tensor> from, given;
  for (size_t k = 0; k < y.size(); ++k) {
    if (!grads[k] || !y[k].requires_grad()) continue;
    check_like("backward", grads[k], y[k].shape(), y[k].dtype(), y[k].device());
    from.push_back(y[k]);
    given.push_back(grads[k]);
  }
  y.clear();
  GradMap g;
  if (!from.empty()) g = walk(from, given, std::move(ends), {.create_graph = create});
  Tensors r;
  for (auto& t : x) r.emplace_back(t.requires_grad() && g.contains(t) ? g[t] : Tensor());
  for (auto& t : captured) r.emplace_back(create && g.contains(t) ? g[t] : g.native(t));
  return r;
}
}  // namespace tg
