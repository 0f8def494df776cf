#include <tapegrad/core/plan/executable.h>
#include <tapegrad/core/profile/work.h>

#include <algorithm>

namespace tg::detail {
// Lays a plan out as an Executable: first the memory of each value, then the calls. Their pointers are patched once the
// sources are known.
class Executable::Builder {
 public:
  Builder(Executable& p, const Graph& g, const Plan& plan) : p_(p), g_(g), plan_(plan) {}

  void build() {
    for (const Slot& s : g_.slots) p_.layouts_.push_back(*s.layout);
    p_.source_of_.assign(g_.slots.size(), kNone);
    leaves();
    for (const Plan::Arena& a : plan_.arenas) {
      arenas_.push_back(make_ref<Storage>(a.device, a.bytes));
      p_.bytes_ += a.bytes;
    }
    size_t bufs = 0;
    for (uint32_t n = 0; n < g_.nodes.size(); ++n) bufs += g_.inputs(n).size() + g_.nodes[n]->out.size();
    p_.bufs_.reserve(bufs);  // patch sites point into it
    for (const Step& s : plan_.steps) assign_sources(s);
    for (const Step& s : plan_.steps) add_call(s);
    std::ranges::stable_sort(p_.dynamic_ops_, {}, &DynamicOp::node);
    for (uint32_t r = 0; r < p_.sources_.size(); ++r) {
      if (p_.sources_[r].kind == MemorySource::Kind::fixed)
        p_.patch_pointers(p_.sources_[r]);
      else
        p_.moving_sources_.push_back(r);
    }
  }

 private:
  uint32_t add_source(MemorySource r) {
    p_.sources_.push_back(std::move(r));
    return uint32_t(p_.sources_.size() - 1);
  }
  void leaves() {
    const auto leaf = [&](uint32_t slot, MemorySource r) {
      if (slot != kNone) p_.source_of_[slot] = add_source(std::move(r));
    };
    for (uint32_t k = 0; k < p_.binding_.inputs.size(); ++k)
      leaf(p_.binding_.inputs[k], {.kind = MemorySource::Kind::input, .index = k});
    for (uint32_t k = 0; k < p_.binding_.variables.size(); ++k)
      leaf(p_.binding_.variables[k].slot, {.kind = MemorySource::Kind::variable, .index = k});
  }
  static MemorySource fixed(Ref<Storage> s) {
    Storage* const raw = s.get();
    return {.kind = MemorySource::Kind::fixed, .owned = std::move(s), .storage = raw, .data = raw->data};
  }
  uint32_t new_source(uint32_t slot) {
    const Layout& l = p_.layouts_[slot];
    uint32_t group = slot;
    while (g_.slots[group].group != group) group = g_.slots[group].group;
    if (g_.slots[group].pinned)
      return add_source({.kind = MemorySource::Kind::per_run, .device = l.device, .bytes = l.bytes()});
    const BufferSlice& at = plan_.slices[group];
    if (at.arena != BufferSlice::kNone)
      return add_source(fixed(make_ref<Storage>(arenas_[at.arena], at.offset, l.bytes())));
    p_.bytes_ += l.bytes();
    return add_source(fixed(make_ref<Storage>(l.device, l.bytes())));
  }
  uint32_t donated_source(uint32_t from) {
    const uint32_t source = p_.source_of_[from];
    if (p_.sources_[source].kind != MemorySource::Kind::variable) return source;
    const Layout& l = p_.layouts_[from];
    return add_source({.kind = MemorySource::Kind::donated, .index = source, .device = l.device, .bytes = l.bytes()});
  }
  void assign_sources(const Step& s) {
    if (s.duplicate_of != kNone) {
      for (size_t i = 0; i < g_.nodes[s.nodes[0]]->out.size(); ++i)
        p_.source_of_[g_.output(s.nodes[0], i)] = p_.source_of_[g_.output(s.duplicate_of, i)];
      return;
    }
    const std::vector<Operation> ops = operations(g_, s);
    for (size_t k = 0; k < ops.size(); ++k)
      for (size_t i = 0; i < ops[k].out.size(); ++i) {
        if (ops[k].out[i] == kNone) continue;
        uint32_t& source = p_.source_of_[ops[k].out[i]];
        if (const int view_of = ops[k].layouts[i]->aliases_input; view_of >= 0)
          source = p_.source_of_[ops[k].in[size_t(view_of)]];
        else if (const int32_t donor = s.donors[k][i]; donor >= 0)
          source = donated_source(ops[k].in[size_t(donor)]);
        else
          source = new_source(ops[k].out[i]);
      }
  }
  void add_entry(uint32_t slot, bool writes, std::byte** at, size_t offset = 0) {
    p_.sources_[p_.source_of_[slot]].patch_sites.push_back({at, offset, uint32_t(p_.calls_.size()), writes});
  }
  void add_op(OpPtr op, uint32_t node, const Op** in_chain) {
    if (op->traits().dynamic_attributes)
      p_.dynamic_ops_.push_back({op, uint32_t(p_.ops_.size()), uint32_t(p_.calls_.size()), node, in_chain});
    p_.ops_.push_back(std::move(op));
  }
  void add_call(const Step& s) {
    const Node& last = *g_.nodes[s.nodes.back()];
    if (s.duplicate_of != kNone || last.op->traits().kind == OpKind::view) return;
    Call c{.op = uint32_t(p_.ops_.size()),
           .first = uint32_t(p_.bufs_.size()),
           .device = last.out[0].layout.device,
           .scope = last.scope,
           .range = last.range};
    if (!s.replacement && s.nodes.size() > 1) {
      c.chain = add_chain(s);
      c.name = chain_name(c.chain->ops);
    } else {
      Operation o = operations(g_, s)[0];
      const auto add = [&](uint32_t slot, bool writes, const Layout* layout) {
        p_.bufs_.push_back({layout, nullptr});
        add_entry(slot, writes, &p_.bufs_.back().bytes);
      };
      for (const uint32_t in : o.in) add(in, false, &p_.layouts_[in]);
      for (size_t i = 0; i < o.out.size(); ++i)
        add(o.out[i], true, s.replacement ? &p_.own_layouts_.emplace_back(*o.layouts[i]) : &p_.layouts_[o.out[i]]);
      c.name = o.op->name();
      c.in = uint32_t(o.in.size());
      c.out = uint32_t(o.out.size());
      add_op(std::move(o.op), s.nodes[0], nullptr);
    }
    p_.calls_.push_back(c);
  }
  ChainCall* add_chain(const Step& s) {
    const Node &first = *g_.nodes[s.nodes[0]], &last = *g_.nodes[s.nodes.back()];
    const DType to = last.out[0].layout.dtype;
    ChainCall& c = p_.chains_.emplace_back(ChainCall{s.chain, {}, {}, first.in.empty() ? to : first.in[0].dtype, to});
    c.data.assign(c.plan.buffers.size(), nullptr);
    c.ops.reserve(s.nodes.size());  // dynamic ops point into it
    for (const uint32_t n : s.nodes) {
      c.ops.push_back(g_.nodes[n]->op.get());
      add_op(g_.nodes[n]->op, n, &c.ops.back());
    }
    for (size_t b = 0; b < c.plan.buffers.size(); ++b) {
      const ChainPlan::Buffer& from = c.plan.buffers[b];
      const uint32_t node = s.nodes[from.node];
      if (from.kind == ChainPlan::Buffer::Kind::temporary) continue;
      const bool input = from.kind == ChainPlan::Buffer::Kind::input;
      const uint32_t slot = input ? g_.inputs(node)[from.index] : g_.output(node, 0);
      const Layout& l = p_.layouts_[slot];
      add_entry(slot, !input, &c.data[b], size_t(l.offset) * size_of(l.dtype));
      (input ? c.work.read : c.work.written) += distinct_bytes(l);
    }
    return &c;
  }

  Executable& p_;
  const Graph& g_;
  const Plan& plan_;
  std::vector<Ref<Storage>> arenas_;
};

void Executable::build(const Graph& g, const Plan& plan) { Builder(*this, g, plan).build(); }

}  // namespace tg::detail
