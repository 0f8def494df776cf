#include <tapegrad/core/trace.h>

#include <algorithm>

namespace tg::detail {

constinit thread_local Trace* t_trace = nullptr;

Trace::Trace() : first_id_(next_ids()) { t_trace = this; }
Trace::~Trace() {
  t_trace = nullptr;
  for (CapturedVariable& h : held) h.variable->value = std::move(h.before);
}

void Trace::add_input(const Tensor& t) { known_.insert(t.value().get()); }
void Trace::reads(const Tensor& t) {
  if (traced(*t.value()) || known_.contains(t.value().get())) return;
  TG_CHECK(!(grad_enabled() && t.requires_grad() && t.value()->producer), state,
           "[compile] the function reads {}, which ops outside made on the tape: a replay could not follow its "
           "gradient there. Compute it inside, or pass a detach().",
           t);
  if (!t.materialised()) {
    const ScopedValue<Trace*> outside(t_trace, nullptr);
    evaluate({t});
  }
  auto during = make_ref<Value>(t.layout(), t.value()->storage);
  known_.insert(during.get());
  held.push_back({t.variable(), t.value(), during});
  t.variable()->value = std::move(during);
}
void Trace::emitted(const Ref<Node>& n) {
  nodes.push_back(n);
  emitted_.insert(n.get());
}
void Trace::assigns(const Tensor& to, const Tensor& value) {
  reads(value);
  if (traced(*to.value()))
    local_.push_back(to.variable());
  else
    reads(to);
}

bool Trace::made_here(const Tensor& t) const {
  return t.id() >= first_id_ && !traced(*t.value()) && !known_.contains(t.value().get());
}
void Trace::fail_host_read(const Tensor& t) const {
  std::string where = "it comes from outside";
  if (const Node* n = t.value()->producer.get(); n && emitted_.contains(n)) {
    const auto at = std::ranges::find(nodes, n, [](const Ref<Node>& x) { return x.get(); }) - nodes.begin();
    where = fmt::format("op {} of the trace, {}, makes it", at + 1, n->op->name());
    if (n->scope->parent) where += fmt::format(" in {}", n->scope->path());
  }
  fail(Error::Kind::state,
       fmt::format("[compile] the host reads {} while the function is traced: {}. A compiled function runs once and is "
                   "then replayed without it, so nothing in it may depend on values. Return the tensor and read it "
                   "outside, choose with where(), or leave this part uncompiled.",
                   t, where));
}

void Trace::check_kept(Inputs returned) const {
  const auto references = [&](const Ref<Variable>& v) {
    const auto is = [&](const auto& x) { return x.get() == v.get(); };
    return std::ranges::count_if(returned, [&](const Tensor& t) { return is(t.variable()); }) +
           std::ranges::count_if(held, [&](const CapturedVariable& h) { return is(h.variable); }) +
           std::ranges::count_if(local_, is);
  };
  for (const auto& v : local_)
    TG_CHECK(v.use_count() <= references(v), state,
             "[compile] the function makes {} and keeps it for the next call, which would find the first one again: a "
             "replay does not make it. Make it before the function is compiled.",
             Tensor(v));
  for (const CapturedVariable& h : held)
    TG_CHECK(h.variable->id >= first_id_ || h.variable.use_count() > references(h.variable), state,
             "[compile] the function reads {} of an earlier graph, which nobody holds, so a replay would read it as it "
             "is now. Run the whole graph inside, forward and backward.",
             Tensor(h.variable));
}

}  // namespace tg::detail
