// emit() infers shapes, records the node, and runs it if eager. Vjp reads saved values.
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/custom_gradient.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/observe.h>

#include <algorithm>
#include <optional>

namespace tg {
namespace {
constinit thread_local uint64_t t_seq = 0;
constinit thread_local std::vector<Tensor>* t_reads = nullptr;  // see ReadsOfTracked
constinit thread_local const Observer* t_observer = nullptr;
}  // namespace

detail::ReadsOfTracked::ReadsOfTracked(std::vector<Tensor>& to) : ScopedValue(t_reads, &to) {}
ObserveScope::ObserveScope(Observer see) : see_(std::move(see)), observing_(t_observer, &see_) {
  detail::forbid_in_trace("ObserveScope", "ops are observed");
}
bool detail::observing() { return t_observer; }

Tensors Op::vjp(const Vjp&) const {
  detail::fail(Error::Kind::missing_gradient,
               fmt::format("[{}] has no gradient. Give it a vjp, or cut the graph with detach().", name()));
}
Tensors Op::compose(Inputs) const {
  detail::fail(Error::Kind::internal, fmt::format("[{}] has no compose().", name()));
}

void detail::fail_no_kernel(const Op& op, Backend b) {
  const std::string_view backend = name_of(b);
  std::string others;
  for (size_t i = 0; i < kBackends; ++i)
    if (op.supports(Backend(i))) others += fmt::format("{}{}", others.empty() ? "" : " and ", name_of(Backend(i)));
  detail::fail(Error::Kind::missing_kernel,
               fmt::format("[{0}] has no kernel for backend {1}{2}. Move its inputs with .to(device), or, for a custom "
                           "op, write TG_KERNEL(<op>, {1}, <function>), or TG_UNARY_OP(<struct>, {1}), in a {3} file "
                           "of your program. A static library drops the object of such a file: make it an OBJECT "
                           "library, or link the whole archive ($<LINK_LIBRARY:WHOLE_ARCHIVE,...> in CMake).",
                           op.name(), backend, others.empty() ? "" : fmt::format(", only for {}", others),
                           b == Backend::cuda ? ".cu" : ".cpp"));
}

void Node::release() {
  released = true;
  for (auto& e : in) {
    e.producer = nullptr;
    if (done) e.value = nullptr;
  }
  for (auto& o : out) o.saved = nullptr;
  drop_recomputed();
}
void Node::drop_recomputed() {
  for (auto& o : out) o.recomputed = nullptr;
}
void Node::dispose(const Node* n) {
  constinit thread_local Node* dead = nullptr;
  constinit thread_local bool active = false;
  const_cast<Node*>(n)->next_dead = std::exchange(dead, const_cast<Node*>(n));
  if (active) return;
  for (active = true; dead;) delete std::exchange(dead, dead->next_dead);  // ~Node may add another
  active = false;
}

namespace {
[[noreturn]] void fail_dtype(const Op& op, size_t i, const Tensor& x) {
  std::string names;
  for (int d = 0; d < kDTypes; ++d)
    if (op.dtypes.contains(DType(d))) names += fmt::format("{}{}", names.empty() ? "" : ", ", DType(d));
  detail::fail(Error::Kind::dtype, fmt::format("[{}] input {} is {}. The op takes {}: convert it with .to(dtype).",
                                               op.name(), i, x, names));
}
Layouts checked_layouts(const Op& op, Inputs in) {
  try {
    for (size_t i = 0; i < in.size(); ++i) {
      TG_CHECK(in[i], value, "[{}] input {} is an empty tensor{}", op.name(), i, detail::about_empty());
      TG_CHECK(in[i].device() == in[0].device(), device,
               "[{}] inputs are on different devices: input 0 is {} on {}, input {} is {} on {}. Move one with "
               ".to(device).",
               op.name(), in[0], in[0].device(), i, in[i], in[i].device());
      if (!op.dtypes.empty() && !op.dtypes.contains(in[i].dtype())) [[unlikely]]
        fail_dtype(op, i, in[i]);
    }
    Layouts layouts = op.infer(in);
    for (auto& l : layouts) detail::checked_numel(op.name(), l.shape);  // broadcasting can exceed 64-bit sizes
    return layouts;
  } catch (const Error& e) {
    throw detail::with_scope(e, detail::current_scope());
  }
}

Ref<Node> make_node(OpPtr op, Inputs in, const Layouts& layouts, Tensors& outs) {
  Mask tracked = 0;
  if (grad_enabled())
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].requires_grad()) tracked |= mask_of(i);
  auto node = make_ref<Node>();
  node->scope = detail::current_scope();
  node->range = detail::t_range;
  node->first_id = detail::next_ids(layouts.size());
  node->tracked = tracked;
  detail::Trace* const trace = detail::tracing();
  Ref<Value> traced;
  detail::ReadsValues reads;
  for (size_t i = 0; i < in.size(); ++i) {
    Variable& x = *in[i].variable();
    if (trace) [[unlikely]]
      traced = trace->reads(in[i]);
    else
      reads.wait_for(x);
    const Ref<Value>& seen = trace ? traced : x.value;
    Value& v = *seen;
    // A Lamport clock per thread: at least the seq of each node it reads.
    if (v.producer) t_seq = std::max(t_seq, v.producer->seq);
    auto& e = node->in.emplace_back(x.id, seen, nullptr, nullptr, x.label, Shape(), v.layout.dtype,
                                    tracked && x.requires_grad, v.storage ? v.storage->version : detail::kUnset);
    if (!tracked) {
      if (t_reads && x.requires_grad) [[unlikely]]
        t_reads->push_back(in[i]);
      continue;
    }
    e.shape = v.layout.shape;
    if (!e.tracked) continue;
    x.recorded.store(true, std::memory_order_relaxed);
    e.hooks = x.hooks;
    // Lazy leaves have a producer outside of the tape; recomputed values belong to an older tape.
    if (v.producer && v.producer->tracked)
      e.producer = v.producer;
    else if (x.origin)
      e.producer = x.origin->producer, t_seq = std::max(t_seq, e.producer->seq);
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    auto v = make_ref<Value>(layouts[i]);
    v->producer = node;
    v->index = uint32_t(i);
    v->tracked = tracked;
    v->lent = tracked || layouts.size() > 1;
    node->out.emplace_back(layouts[i], v.get(), nullptr, 0u);
    outs.emplace_back(make_ref<Variable>(node->id(i), std::move(v), tracked && is_float(layouts[i].dtype)));
    if (trace) [[unlikely]]
      trace->made(outs.back().variable());
  }
  node->seq = ++t_seq;
  node->op = std::move(op);
  if (detail::t_recomputes != detail::Recomputes::nothing) [[unlikely]] {
    node->is_recomputation = detail::t_recomputes == detail::Recomputes::now;
    if (tracked && !node->is_recomputation) detail::plan_recomputing(*node);
  }
  if (trace) [[unlikely]]
    trace->emitted(node);
  return node;
}
void observe(const Op& op, const Tensors& outs) {
  if (op.traits().kind == OpKind::view || op.traits().asynchronous) return;
  const ScopedValue<const Observer*> unobserved(t_observer, nullptr);
  NoGradScope off;
  for (size_t k = 0; k < outs.size(); ++k) (*unobserved.former())({detail::current_scope(), op.name(), k, outs[k]});
}
// Ops of compose(), with the op's vjp() if any.
Tensors composed(const OpPtr& op, Inputs in) {
  const ScopedValue<const Observer*> unobserved(t_observer, nullptr);
  if (!op->has_vjp || !grad_enabled() || !std::ranges::any_of(in, &Tensor::requires_grad)) return op->compose(in);
  std::vector<Tensor> all(in.begin(), in.end());
  {
    NoGradScope off;
    for (const Tensor& y : op->compose(in)) all.push_back(y);
  }
  return emit(make_ref<op::CustomGradient>(op, in.size()), all);
}
template <class Release> Tensors emit_and(OpPtr op, Inputs in, Release release) {
  const Layouts layouts = checked_layouts(*op, in);
  Tensors outs;
  const OpPtr kept = t_observer && detail::t_recomputes != detail::Recomputes::now ? op : nullptr;
  if (op->composes && !op->supports(layouts[0].device.backend)) {
    outs = composed(op, in);
  } else {
    auto node = make_node(std::move(op), in, layouts, outs);
    release();
    if (!lazy_enabled()) detail::run_or_evaluate(*node, {outs.data(), outs.size()});
  }
  if (kept) [[unlikely]]
    observe(*kept, outs);
  return outs;
}
}  // namespace
Tensors emit(OpPtr op, Inputs in) {
  return emit_and(std::move(op), in, [] {});
}
Tensors detail::emit_donating(OpPtr op, std::vector<Tensor> in) {
  return emit_and(std::move(op), in, [&] { in.clear(); });
}
void detail::emit_update(OpPtr op, Inputs in, size_t n) {
  NoGradScope off;
  Tensors outs;
  const Layouts layouts = checked_layouts(*op, in);  // precedes the move: argument order is unspecified
  auto node = make_node(std::move(op), in, layouts, outs);
  size_t assigned = 0;
  const auto end = [&] {
    for (const Tensor& t : in.first(assigned)) t.variable()->updating = false;
  };
  try {  // assigned first: the node is the old value's sole owner
    if (lazy_enabled()) {
      for (; assigned < n; ++assigned) in[assigned].assign(outs[assigned]);
      return;
    }
    {
      detail::WritesValues alone;
      alone.claim(*node);
      for (; assigned < n; ++assigned) {
        Ref<Value>& old = node->in[assigned].value;
        if (alone.others() && old.use_count() == 2) old = make_ref<Value>(old->layout, old->storage);
        in[assigned].variable()->updating.store(true, std::memory_order_relaxed);
        outs[assigned].value()->runner.store(alone.thread().id, std::memory_order_relaxed);
        alone.replace(*in[assigned].variable(), outs[assigned].value());
      }
    }
    detail::run_or_evaluate(*node, {outs.data(), outs.size()});
    end();
  } catch (...) {
    detail::WritesValues alone;
    detail::abandon(*node);
    for (size_t k = 0; k < assigned; ++k) alone.replace(*in[k].variable(), node->in[k].value);
    end();
    throw;
  }
}

namespace {
Tensor handle(uint64_t id, Ref<Value> v, bool tracked, const std::string* label) {
  Tensor t(make_ref<Variable>(id, std::move(v), tracked));
  t.variable()->label = label;
  return t;
}
}  // namespace
Vjp::Vjp(Node& n, Inputs grads, bool last, Accumulators* sums) : Vjp(n, grads, last, sums, n.in.size()) {}
const Shape& Vjp::in_shape(size_t i) const { return node_.in[i].shape; }
DType Vjp::in_dtype(size_t i) const { return node_.in[i].dtype; }
Device Vjp::device() const { return node_.out[0].layout.device; }
bool Vjp::wants(size_t i) const { return node_.in[i].tracked; }
Tensor Vjp::take_accumulated(size_t i, DType dtype) const { return sums_ ? sums_->take(node_.in[i], dtype) : Tensor(); }
Tensor Vjp::in(size_t i) const {
  const Edge& e = node_.in[i];
  const bool again = node_.recomputing.in & mask_of(i);
  TG_CHECK(e.value || again, internal, "[{}] vjp reads input {}, which saves_in() does not keep.", node_.op->name(), i);
  if (!again) detail::check_version(node_, i);
  Tensor t = handle(e.id, again ? detail::recomputed(node_, i) : e.value, wants(i), e.label);
  t.variable()->hooks = e.hooks;  // ops of a second backward see the same leaf
  if (again) {
    t.variable()->origin = make_ref<Value>(t.layout());
    t.variable()->origin->producer = e.producer;
  }
  return t;
}
Tensor Vjp::donate_in(size_t i) const {
  Tensor t = in(i);
  if (last_ && node_.done) node_.in[i].value = nullptr;
  return t;
}
Tensor Vjp::out(size_t i) const {
  Out& o = node_.out[i];
  TG_CHECK(node_.op->saves_out(node_.tracked) & mask_of(i), internal,
           "[{}] vjp reads output {}, which saves_out() does not keep.", node_.op->name(), i);
  // After the lookup, any value of the storage will do.
  std::optional<detail::WritesValues> alone;
  Ref<Value> v;
  if (!node_.done) v = Ref<Value>(alone.emplace().owned(o));
  if (!v) {
    v = make_ref<Value>(o.layout);
    v->storage = o.saved;
    v->version = o.version;
    v->producer = &node_;
    v->index = uint32_t(i);
    v->tracked = v->lent = true;
    if (alone) o.live = v.get();
  }
  alone.reset();
  detail::check_version(node_, i, true);
  return handle(node_.id(i), std::move(v), is_float(o.layout.dtype), nullptr);
}
}  // namespace tg
