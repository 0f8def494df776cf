#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/trace.h>

#include <algorithm>

namespace tg::detail {

constinit thread_local Trace* t_trace = nullptr;
std::atomic<uint64_t> g_reads_elsewhere = 0;

Trace::Trace() : first_id_(id_of_next_tensors()) { t_trace = this; }
Trace::~Trace() {
  t_trace = nullptr;
  for (const Ref<Value>& v : copied) v->bf16_copy = nullptr;  // the copying op reads v: a cycle
  for (CapturedVariable& h : held)
    if (!h.bf16_copy && h.after)
      if (WritesValues alone; h.variable->value.get() == h.after.get()) alone.replace(*h.variable, std::move(h.before));
}

namespace {
bool is_recorded(const Tensor& t) { return grad_enabled() && t.requires_grad() && t.value()->tracked; }
std::string of_the_tape(const std::string& what) {
  return fmt::format(
      "[compile] the function reads {}, which ops outside of it recorded on the tape: a replay could not pass its "
      "gradient on to them. Compute it inside, or pass a detach(), with requires_grad_() for its own gradient.",
      what);
}
void compute_outside(const Tensor& t) {
  const ScopedValue<Trace*> outside(t_trace, nullptr);
  while (!t.materialized()) eval({t});
}
Tensor twin(const Tensor& t, Ref<Value> v) {
  auto r = make_ref<Variable>(t.id(), std::move(v), t.requires_grad());
  r->label = t.variable()->label;
  r->hooks = t.variable()->hooks;
  return Tensor(std::move(r));
}
}  // namespace
const std::string* error_of_traced() {
  static const std::string* const text = detail::intern(
      "it belongs to the trace of a compiled function. Its thread records it without running it, and replays compute "
      "only what the function returns. Return it too, and read it after the call.");
  return text;
}

Tensor Trace::add_input(const Tensor& t) {
  const ReadsValues reads;
  compute_outside(t);
  Tensor x = twin(t, make_ref<Value>(t.layout(), t.value()->storage));
  if (is_recorded(t))
    taped_.emplace(x.value().get(), fmt::format("input {}, {}", inputs_.size(), t));
  else
    known_.insert(x.value().get());
  inputs_.push_back(x.variable().get());
  made_.push_back(x.variable());
  return x;
}
Tensor Trace::add_state(const Tensor& t) {
  const size_t k = capture(t);
  captured_.erase(t.variable().get());
  Tensor x = twin(t, held[k].during);
  captured_.emplace(x.variable().get(), k);
  return x;
}
void Trace::ends_state(size_t k, bool replaced) {
  const Tensor t(held[k].variable);
  const auto [other, alone] = captured_.emplace(t.variable().get(), k);
  if (!alone && (replaced || held[other->second].updated))
    refuse(fmt::format(
        "[compile] the function {} state {}, {}, and uses it through another handle, too. A replay gives the variable "
        "of both the new value, but the function only that handle. Let one of them have a detach().",
        replaced ? "replaces" : "assigns", k, t));
}
Ref<Value> Trace::reads(const Tensor& t) {
  const ReadsValues reads;
  if (traced(*t.value()) || known_.contains(t.value().get())) return t.value();
  if (const auto at = captured_.find(t.variable().get()); at != captured_.end()) return held[at->second].during;
  if (const auto at = taped_.find(t.value().get()); at != taped_.end()) {
    if (grad_enabled()) refuse(of_the_tape(at->second));
    return t.value();
  }
  return held[capture(t)].during;
}
size_t Trace::capture(const Tensor& t) {
  const ReadsValues reads;
  if (is_recorded(t)) refuse(of_the_tape(fmt::format("{}", t)));
  if (made_by_function(*t.variable())) {
    if (std::ranges::find(made_, t.variable().get(), &Ref<Variable>::get) == made_.end())
      refuse(
          fmt::format("[compile] the function reads {}, which another thread made while it was traced: only the ops "
                      "of the calling thread are in its replays. Compute it in this thread, or before the call.",
                      t));
    check_constant(fmt::format("makes {} of host data", t));
  }
  compute_outside(t);
  captured_.emplace(t.variable().get(), held.size());
  hold({t.variable(), t.value(), make_ref<Value>(t.layout(), t.value()->storage)});
  return held.size() - 1;
}
const Trace::CapturedVariable* Trace::captured(const Tensor& t, const Value& seen) const {
  const auto at = captured_.find(t.variable().get());
  return at != captured_.end() && held[at->second].during.get() == &seen ? &held[at->second] : nullptr;
}
Ref<Value> Trace::hold(CapturedVariable v) {
  known_.insert(v.during.get());
  return held.emplace_back(std::move(v)).during;
}
void Trace::emitted(const Ref<Node>& n) {
  n->error = error_of_traced();
  nodes.push_back(n);
  emitted_.insert(n.get());
  ops_.push_back(n->op);
}
Ref<Value> Trace::assigns(const Tensor& to, const Tensor& value) {
  if (const auto at = std::ranges::find(inputs_, to.variable().get()); at != inputs_.end())
    refuse(
        fmt::format("[compile] the function assigns input {}, {}: a replay could not. Return the new value, or "
                    "capture the tensor instead of passing it.",
                    at - inputs_.begin(), to));
  Ref<Value> next = reads(value);
  if (made_by_function(*to.variable())) return next;
  reads(to);
  if (const auto at = captured_.find(to.variable().get()); at != captured_.end()) held[at->second].updated = true;
  for (CapturedVariable& h : held)
    if (h.variable.get() == to.variable().get()) h.after = next;
  return next;
}
std::string Trace::maker(const Tensor& t) const {
  const Node* n = t.value()->producer.get();
  if (!n || !emitted_.contains(n)) return "";
  const auto at = std::ranges::find(nodes, n, [](const Ref<Node>& x) { return x.get(); }) - nodes.begin();
  std::string s = fmt::format("op {} of the trace, {}, makes it", at + 1, n->op->name());
  if (n->scope->parent) s += fmt::format(" in {}", n->scope->path());
  return s;
}
void Trace::refuse(const std::string& why) {
  if (!refused_) refused_.emplace(Error::Kind::state, why);
  throw Error(Error::Kind::state, why);
}
void forbid_in_trace(std::string_view op, std::string_view what) {
  if (tracing())
    tracing()->refuse(fmt::format(
        "[{}] {} while a compiled function is traced: a replay would not do it again. Do it outside, before the call.",
        op, what));
}
void Trace::check_refused() const {
  if (refused_) throw *refused_;
}
void Trace::check_host_read(const Tensor& t) {
  const bool recorded = traced(*t.value()) || known_.contains(t.value().get());
  if (!recorded && made_by_function(*t.variable())) return check_constant(fmt::format("makes {} of host data", t));
  const std::string by = maker(t);
  refuse(
      fmt::format("[compile] the host reads {} while the function is traced: {}. A compiled function is called once "
                  "and then replayed without calls, so its code must not depend on tensor values. Return the tensor "
                  "and read it outside, select with where(), or do not compile this part.",
                  t, by.empty() ? "it comes from outside" : by));
}

void Trace::check_constant(const std::string& what) {
  if (constants) return;
  refuse(fmt::format(
      "[compile] the function {} while it is traced, so each replay would use the values of this call. Pass them as "
      "an input, or make them outside and capture the tensor. If they are the same in every call, set "
      "CompileOptions::constants.",
      what));
}

void Trace::check_elsewhere() {
  if (g_reads_elsewhere != reads_elsewhere_)
    refuse("[compile] another thread read a tensor of the trace, which has no value. Read results after the call.");
}
// Escape analysis by reference counts. Invariant: at the end of a trace, every reference to a Variable that the trace
// made comes from made_, `held`, the inputs or the results. Any other reference is the caller's handle, whose value no
// replay would update: an Error. A captured older Variable needs an owner outside; without one it is an earlier graph's
// intermediate, whose next value replays cannot see.
void Trace::check_kept(Inputs inputs, Inputs returned) {
  check_elsewhere();
  std::unordered_map<const Variable*, size_t> known;  // references from trace, inputs and results
  for (const Inputs handles : {inputs, returned})
    for (const Tensor& t : handles) ++known[t.variable().get()];
  for (const CapturedVariable& h : held) {
    ++known[h.variable.get()];
    if (elsewhere_.have(*h.variable) ||
        (!h.bf16_copy && h.variable->value.get() != (h.after ? h.after : h.before).get()))
      refuse(
          fmt::format("[compile] another thread updated {} while the function was traced, which no replay would "
                      "repeat. Update it in the thread that calls the function, or before the call.",
                      Tensor(h.variable)));
  }
  // Freed at the end: number() counts owners next.
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
