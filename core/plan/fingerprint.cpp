#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/fingerprint.h>
#include <tapegrad/core/util/scoped_value.h>

#include <algorithm>

namespace tg::detail {
namespace {
// Elements of a constant.
void add_elements(StructuralHash& k, const Value& v) {
  const ScopedValue<Trace*> outside(t_trace, nullptr);
  const Tensor t = Tensor(make_ref<Value>(v.layout, v.storage)).contiguous();
  eval({t});
  const Layout& l = t.layout();
  k.add(l.shape);
  k.add(uint64_t(l.dtype));
  std::vector<std::byte> bytes(l.bytes());
  if (!bytes.empty())
    detail::runtime_of(l.device).copy_to_host(
        l.device.index, bytes.data(), t.value()->storage->data + l.offset * int64_t(size_of(l.dtype)), l.bytes());
  for (const std::byte b : bytes) k.add(uint64_t(b));
}
enum Leaf : uint64_t { kConstant, kVariable, kCopy, kInput };
}  // namespace

Fingerprint::Fingerprint(const Graph& g, const Binding& b, const Trace& trace,
                         std::span<const GeneratorSpan> generators) {
  // Per slot: a result's slot number, or a hash of a leaf.
  std::vector<uint64_t> meaning(g.slots.size());
  for (uint32_t s = 0; s < g.slots.size(); ++s) meaning[s] = s;
  const auto leaf = [&](uint32_t slot, const StructuralHash& k) {
    if (slot != kNone) meaning[slot] = k.a;
  };
  for (size_t k = 0; k < b.variables.size(); ++k) {
    const Binding::CapturedVariable& v = b.variables[k];
    const bool constant = trace.made_by_function(*v.variable);
    StructuralHash h;
    h.add(constant ? kConstant : v.bf16_copy ? kCopy : kVariable);
    if (constant)
      add_elements(h, *trace.held[k].during);
    else
      h.add(v.variable->id);
    leaf(v.slot, h);
    if (v.new_value != kNone) assigned_.push_back(h.a);
  }
  for (size_t k = 0; k < b.inputs.size(); ++k) {
    StructuralHash h;
    h.add(kInput);
    h.add(k);
    leaf(b.inputs[k], h);
  }
  for (const auto& n : g.nodes) {
    StructuralHash h;
    h.add(n->op->type());
    n->op->replay_key(h);
    h.add(n->is_recomputation);
    if (const Rng* at = n->op->rng_state())
      for (size_t k = 0; k < generators.size(); ++k)
        if (generators[k].covers(*at)) h.add(k), h.add(at->offset - generators[k].begin.offset);
    attributes_.push_back(h.a);
  }
  for (const uint32_t s : g.in) in_.push_back(meaning[s]);
  for (const uint32_t s : b.outputs) outputs_.push_back(meaning[s]);
  for (const auto& v : b.variables)
    if (v.new_value != kNone) assigned_.push_back(meaning[v.new_value]);
}

std::string Fingerprint::difference(const Fingerprint& now, const Graph& g) const {
  const auto name = [&](size_t i) {
    const Node& n = *g.nodes[i];
    return fmt::format("op {}, {}{}{},", i + 1, n.op->name(), n.scope->parent ? " in " : "", n.scope->path());
  };
  for (size_t i = 0; i < std::min(attributes_.size(), now.attributes_.size()); ++i) {
    if (attributes_[i] != now.attributes_[i]) return name(i) + " is another op or has other attributes";
    for (uint32_t k = g.first_in[i]; k < g.first_in[i + 1]; ++k)
      if (k >= in_.size() || in_[k] != now.in_[k])
        return fmt::format("{} reads another tensor as its input {}", name(i), k - g.first_in[i]);
  }
  if (attributes_.size() != now.attributes_.size())
    return fmt::format("it makes {} ops, and made {}", now.attributes_.size(), attributes_.size());
  if (in_ != now.in_) return "an op reads other tensors";
  if (outputs_ != now.outputs_) return "it returns other tensors";
  return assigned_ != now.assigned_ ? "it assigns other tensors" : "";
}

}  // namespace tg::detail
