// RecomputeScope: values that the tape drops because backward can recompute them. Each op decides when it is recorded,
// from values kept anyway: eager, lazy and compiled runs agree.
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace tg {
namespace detail {
namespace {
// All values of a recomputed chain are alive at once: a longer chain keeps an intermediate.
constexpr uint8_t kMostInARow = 8;

size_t output_of(const Edge& e) { return size_t(e.id - e.producer->first_id); }
bool can_compute_again(const Edge& e) {
  return e.producer && e.producer->recomputing.out & mask_of(output_of(e)) &&
         (e.version == kUnset || e.version == e.value->version);  // unwritten since
}

// Whether recomputing output k keeps less than its size. Saved or recomputed inputs and leaves with a gradient (kept by
// the caller) are free; constants such as a frozen bias count. Views follow their base.
bool worth_it(const Node& n, size_t k, Mask reads, Mask saved, Mask again) {
  size_t constants = 0;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Edge& e = n.in[i];
    if (!(reads & mask_of(i)) || again & mask_of(i)) continue;
    if (n.op->traits().kind == OpKind::view) return false;
    if (saved & mask_of(i)) continue;
    if (e.tracked && e.producer) return false;
    if (!e.tracked) constants += e.value->layout.bytes();
  }
  return constants < n.out[k].layout.bytes();
}
}  // namespace

void plan_recomputing(Node& n) {
  if (n.in.size() > 31 || n.out.size() > 31) return;  // masks have 31 bits
  const Mask saved = n.op->saves_in(n.tracked), saved_out = n.op->saves_out(n.tracked);
  Node::Recomputing& r = n.recomputing;
  Mask again = 0;
  for (size_t i = 0; i < n.in.size(); ++i)
    if (can_compute_again(n.in[i]))
      again |= mask_of(i), r.depth = std::max(r.depth, n.in[i].producer->recomputing.depth);
  if (++r.depth <= kMostInARow)
    for (size_t k = 0; k < n.out.size(); ++k) {
      const Mask reads = saved_out & mask_of(k) ? 0 : n.op->recomputes_from(k, n.tracked);
      if (reads && worth_it(n, k, reads, saved, again)) r.out |= mask_of(k), r.reads |= reads;
    }
  r.in = again & (saved | r.reads);
}

Ref<Value> recomputed(const Node& n, size_t i) {
  const Edge& e = n.in[i];
  Node& p = *e.producer;
  const size_t k = output_of(e);
  Out& o = p.out[k];
  std::optional<WritesValues> alone(std::in_place);
  alone->check_unused(p);
  if (const Ref<Value> kept = p.done ? Ref<Value>(alone->owned(o)) : nullptr; kept && kept->storage) {
    check_version(n, i, *kept);
    return kept;
  }
  alone->claim(p);
  alone.reset();
  const std::unique_ptr<Node, void (*)(Node*)> claimed(&p, [](Node* node) { leave(*node); });
  if (!o.recomputed) {
    NoGradScope off;
    const ScopedValue<Recomputes> now(t_recomputes, Recomputes::now);
    const EmitInScope scope(p.scope);
    try {
      o.recomputed = p.op->recompute(Vjp(p, {}), k).value();
    } catch (const Error& error) {
      throw with_scope(error, p.scope);
    }
  }
  return o.recomputed;
}
}  // namespace detail

Mask Op::recomputes_from(size_t, Mask) const {
  const Traits t = traits();
  return t.cheap_to_recompute || t.kind != OpKind::opaque ? ~Mask(0) : 0;
}
Tensor Op::recompute(const Vjp& v, size_t k) const {
  SmallVec<Tensor, 3> in;
  for (size_t i = 0; i < v.inputs(); ++i) in.emplace_back(v.in(i));
  return emit(OpPtr(this), {in.data(), in.size()})[k];
}
}  // namespace tg
