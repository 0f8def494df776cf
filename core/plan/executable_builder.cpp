#include <tapegrad/core/plan/executable.h>
#include <tapegrad/core/profile/work.h>

#include <algorithm>

namespace tg::detail {
namespace {
using MemorySource = ExecutablePlan::MemorySource;
// Finds values' memory, then calls; patches pointers.
class ExecutableBuilder {
 public:
  ExecutableBuilder(const Graph& g, const Plan& plan) : g_(g), plan_(plan) {}

  ExecutablePlan build(const Binding& binding) {
    for (const Slot& s : g_.slots) p_.layouts.push_back(*s.layout);
    p_.source_of.assign(g_.slots.size(), kNone);
    leaves(binding);
    for (const Plan::Arena& a : plan_.arenas) {
      arenas_.push_back(make_ref<Storage>(a.device, a.bytes));
      p_.bytes += a.bytes;
    }
    size_t bufs = 0;
    for (uint32_t n = 0; n < g_.nodes.size(); ++n) bufs += g_.inputs(n).size() + g_.nodes[n]->out.size();
    p_.bufs.reserve(bufs);  // patch sites point into both
    p_.calls.reserve(plan_.steps.size());
    for (const Step& s : plan_.steps) assign_sources(s);
    for (const Step& s : plan_.steps) add_call(s);
    std::ranges::stable_sort(p_.dynamic_ops, {}, &ExecutablePlan::DynamicOp::node);
    for (uint32_t r = 0; r < p_.sources.size(); ++r) {
      const MemorySource& source = p_.sources[r];
      if (source.kind != MemorySource::Kind::fixed)
        p_.moving_sources.push_back(r);
      else
        for (const MemorySource::Entry& e : source.patch_sites) *e.at = source.storage->data + e.offset;
    }
    return std::move(p_);
  }

 private:
  uint32_t add_source(MemorySource r) {
    p_.sources.push_back(std::move(r));
    return uint32_t(p_.sources.size() - 1);
  }
  void leaves(const Binding& binding) {
    const auto leaf = [&](uint32_t slot, MemorySource r) {
      if (slot != kNone) p_.source_of[slot] = add_source(std::move(r));
    };
    for (uint32_t k = 0; k < binding.inputs.size(); ++k)
      leaf(binding.inputs[k], {.kind = MemorySource::Kind::input, .index = k});
    for (uint32_t k = 0; k < binding.variables.size(); ++k)
      leaf(binding.variables[k].slot, {.kind = MemorySource::Kind::variable, .index = k});
  }
  uint32_t new_source(uint32_t slot) {
    const Layout& l = p_.layouts[slot];
    uint32_t group = slot;
    while (g_.slots[group].group != group) group = g_.slots[group].group;
    if (g_.slots[group].pinned)
      return add_source({.kind = MemorySource::Kind::per_run, .device = l.device, .bytes = l.bytes()});
    const BufferSlice& at = plan_.slices[group];
    const bool own = at.arena == BufferSlice::kNone;
    if (own) p_.bytes += l.bytes();
    return add_source({.kind = MemorySource::Kind::fixed,
                       .storage = own ? make_ref<Storage>(l.device, l.bytes())
                                      : make_ref<Storage>(arenas_[at.arena], at.offset, l.bytes())});
  }
  uint32_t donated_source(uint32_t from) {
    const uint32_t source = p_.source_of[from];
    if (p_.sources[source].kind != MemorySource::Kind::variable) return source;
    const Layout& l = p_.layouts[from];
    return add_source({.kind = MemorySource::Kind::donated, .index = source, .device = l.device, .bytes = l.bytes()});
  }
  void assign_sources(const Step& s) {
    if (s.duplicate_of != kNone) {
      for (size_t i = 0; i < g_.nodes[s.nodes[0]]->out.size(); ++i)
        p_.source_of[g_.output(s.nodes[0], i)] = p_.source_of[g_.output(s.duplicate_of, i)];
      return;
    }
    const std::vector<Operation> ops = operations(g_, s);
    for (size_t k = 0; k < ops.size(); ++k)
      for (size_t i = 0; i < ops[k].out.size(); ++i) {
        if (ops[k].out[i] == kNone) continue;
        uint32_t& source = p_.source_of[ops[k].out[i]];
        if (const int view_of = ops[k].layouts[i]->aliases_input; view_of >= 0)
          source = p_.source_of[ops[k].in[size_t(view_of)]];
        else if (const int32_t donor = s.donors[k][i]; donor >= 0)
          source = donated_source(ops[k].in[size_t(donor)]);
        else
          source = new_source(ops[k].out[i]);
      }
  }
  void add_entry(uint32_t slot, bool writes, std::byte** at, size_t offset = 0) {
    p_.sources[p_.source_of[slot]].patch_sites.push_back({at, offset, uint32_t(p_.calls.size() - 1), writes});
  }
  void add_op(OpPtr op, uint32_t node, const Op** use) {
    if (op->traits().dynamic_attributes)
      p_.dynamic_ops.push_back({op, uint32_t(p_.ops.size()), uint32_t(p_.calls.size() - 1), node, use});
    p_.ops.push_back(std::move(op));
  }
  void add_call(const Step& s) {
    const Node& last = *g_.nodes[s.nodes.back()];
    if (s.duplicate_of != kNone || last.op->traits().kind == OpKind::view) return;
    KernelCall& c = p_.calls.emplace_back();
    c.scope = last.scope, c.range = last.range, c.device = last.out[0].layout.device;
    if (!s.replacement && s.nodes.size() > 1) {
      c.chain = add_chain(s, c.device);
      c.name = chain_name(c.chain->ops);
      return;
    }
    Operation o = operations(g_, s)[0];
    const auto add = [&](uint32_t slot, bool writes, const Layout* layout) {
      p_.bufs.push_back({layout, nullptr});
      add_entry(slot, writes, &p_.bufs.back().bytes);
    };
    const Buf* const bufs = p_.bufs.data() + p_.bufs.size();
    for (const uint32_t in : o.in) add(in, false, &p_.layouts[in]);
    for (size_t i = 0; i < o.out.size(); ++i)
      add(o.out[i], true, s.replacement ? &p_.own_layouts.emplace_back(*o.layouts[i]) : &p_.layouts[o.out[i]]);
    c.op = o.op.get(), c.name = o.op->name();
    c.in = {bufs, o.in.size()}, c.out = {bufs + o.in.size(), o.out.size()};
    add_op(std::move(o.op), s.nodes[0], &c.op);
  }
  const ChainCall* add_chain(const Step& s, Device device) {
    const Node &first = *g_.nodes[s.nodes[0]], &last = *g_.nodes[s.nodes.back()];
    const DType to = last.out[0].layout.dtype, from = first.in.empty() ? to : first.in[0].dtype;
    std::vector<const Op*> ops;
    for (const uint32_t n : s.nodes) ops.push_back(g_.nodes[n]->op.get());
    ExecutablePlan::OwnedChain& c = p_.chains.emplace_back(
        s.chain, std::move(ops), std::vector<std::byte*>(s.chain.buffers.size()), device, from, to);
    for (size_t k = 0; k < s.nodes.size(); ++k) add_op(g_.nodes[s.nodes[k]]->op, s.nodes[k], &c.ops[k]);
    for (size_t b = 0; b < c.plan.buffers.size(); ++b) {
      const ChainPlan::Buffer& buffer = c.plan.buffers[b];
      const uint32_t node = s.nodes[buffer.node];
      if (buffer.kind == ChainPlan::Buffer::Kind::temporary) continue;
      const bool input = buffer.kind == ChainPlan::Buffer::Kind::input;
      const uint32_t slot = input ? g_.inputs(node)[buffer.index] : g_.output(node, 0);
      const Layout& l = p_.layouts[slot];
      add_entry(slot, !input, &c.data[b], size_t(l.offset) * size_of(l.dtype));
      (input ? c.call.work.read : c.call.work.written) += distinct_bytes(l);
    }
    return &c.call;
  }

  ExecutablePlan p_;
  const Graph& g_;
  const Plan& plan_;
  std::vector<Ref<Storage>> arenas_;
};
}  // namespace

ExecutablePlan make_executable_plan(const Graph& g, const Plan& plan, const Binding& binding) {
  return ExecutableBuilder(g, plan).build(binding);
}

}  // namespace tg::detail
