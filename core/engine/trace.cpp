#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/trace.h>

#include <algorithm>
#include <unordered_map>

namespace tg::detail {

constinit thread_local Trace* t_trace = nullptr;

Trace::Trace() : first_id_(next_ids()) { t_trace = this; }
Trace::~Trace() {
  t_trace = nullptr;
  for (CapturedVariable& h : held)
    if (!h.bf16_copy && h.variable->value.get() != h.before.get()) h.variable->value = std::move(h.before);
}

void Trace::add_input(const Tensor& t) { known_.insert(t.value().get()); }
Ref<Value> Trace::reads(const Tensor& t) {
  if (traced(*t.value()) || known_.contains(t.value().get())) return t.value();
  if (const auto at = captured_.find(t.variable().get()); at != captured_.end()) return held[at->second].during;
  TG_CHECK(!(grad_enabled() && t.requires_grad() && t.value()->producer), state,
           "[compile] the function reads {}, which ops outside of it recorded on the tape: a replay could not pass "
           "its gradient on to them. Compute it inside, or pass a detach().",
           t);
  if (!t.materialised()) {
    const ScopedValue<Trace*> outside(t_trace, nullptr);
    evaluate({t});
  }
  auto during = make_ref<Value>(t.layout(), t.value()->storage);
  known_.insert(during.get());
  captured_.emplace(t.variable().get(), held.size());
  held.push_back({t.variable(), t.value(), during});
  return during;
}
Ref<Value> Trace::bf16_copy(const Tensor& t) {
  const Ref<Value> seen = reads(t);
  if (Ref<Value> copy = detail::bf16_copy(*seen)) return copy;
  const auto at = captured_.find(t.variable().get());
  if (at == captured_.end() || held[at->second].during.get() != seen.get()) return keep_bf16_copy(*seen);
  const CapturedVariable& h = held[at->second];
  const ScopedValue<Trace*> outside(t_trace, nullptr);
  Ref<Value> before = keep_bf16_copy(*h.before);
  if (!before->storage) evaluate({Tensor(before)});
  auto during = make_ref<Value>(before->layout, before->storage);
  give_bf16_copy(*seen, during);
  known_.insert(during.get());
  held.push_back({h.variable, std::move(before), during, true});
  return during;
}
void Trace::emitted(const Ref<Node>& n) {
  nodes.push_back(n);
  emitted_.insert(n.get());
  ops_.push_back(n->op);
}
Ref<Value> Trace::assigns(const Tensor& to, const Tensor& value) {
  Ref<Value> next = reads(value);
  if (!traced(*to.value())) reads(to);
  return next;
}

bool Trace::made_here(const Tensor& t) const {
  return t.id() >= first_id_ && !traced(*t.value()) && !known_.contains(t.value().get()) &&
         !captured_.contains(t.variable().get());
}
// "op 3 of the trace, exp, makes it in layer", or an empty text.
std::string Trace::maker(const Tensor& t) const {
  const Node* n = t.value()->producer.get();
  if (!n || !emitted_.contains(n)) return "";
  const auto at = std::ranges::find(nodes, n, [](const Ref<Node>& x) { return x.get(); }) - nodes.begin();
  std::string s = fmt::format("op {} of the trace, {}, makes it", at + 1, n->op->name());
  if (n->scope->parent) s += fmt::format(" in {}", n->scope->path());
  return s;
}
void Trace::fail_host_read(const Tensor& t) const {
  const std::string by = maker(t);
  fail(Error::Kind::state,
       fmt::format("[compile] the host reads {} while the function is traced: {}. A compiled function is called once "
                   "and then replayed without calls, so its code must not depend on tensor values. Return the tensor "
                   "and read it outside, select with where(), or do not compile this part.",
                   t, by.empty() ? "it comes from outside" : by));
}

void Trace::check_constant(const std::string& what) const {
  TG_CHECK(
      constants, state,
      "[compile] the function {} while it is traced, so each replay would use the values of this call. Pass them as "
      "an input, or make them outside and capture the tensor. If they are the same in every call, set "
      "CompileOptions::constants.",
      what);
}

// Escape analysis by reference counts. Invariant: at the end of a trace, every reference to a Variable that the trace
// made comes from made_, `held`, the inputs or the results. Nodes hold Values, never Variables, so any other reference
// is a handle of the caller. It would keep the value of the traced call, which no replay updates: an Error. Conversely,
// a captured Variable from before the trace needs an owner outside of it. Without one it is an intermediate of an
// earlier graph, and replays could not see its next value.
void Trace::check_kept(Inputs inputs, Inputs returned) {
  std::unordered_map<const Variable*, size_t> known;  // references held by the trace, inputs and results
  for (const Inputs handles : {inputs, returned})
    for (const Tensor& t : handles) ++known[t.variable().get()];
  for (const CapturedVariable& h : held) ++known[h.variable.get()];
  // They are freed at the end: number() counts the owners of values next.
  const std::vector<Ref<Variable>> made = std::move(made_);
  for (const auto& v : made) ++known[v.get()];
  for (const auto& v : made) {
    if (v.use_count() <= known[v.get()]) continue;
    const Tensor t(v);
    const std::string by = maker(t);
    fail(Error::Kind::state,
         fmt::format(
             "[compile] {} outlives the call of the function without being returned{}{}. A replay does not run the "
             "function, so the tensor would always have the value of the first call. h = h + x and h += x make a new "
             "tensor and give it to the handle. To change a tensor from call to call, make it before and assign() "
             "it, list its handle in CompileOptions::state, or pass it as an input and return the new one; a KvCache "
             "must come from KvCache::with_capacity(). To inspect a value, return it.",
             t, by.empty() ? "" : ": ", by));
  }
  for (const CapturedVariable& h : held)
    TG_CHECK(h.variable->id >= first_id_ || h.variable.use_count() > known[h.variable.get()], state,
             "[compile] the function reads {} of an earlier graph, which has no other owner, so every replay would "
             "read its current value. Run the whole graph inside, forward and backward.",
             Tensor(h.variable));
}
void Trace::undo_steps() const {
  for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) (*op)->undo_step();
}

}  // namespace tg::detail
