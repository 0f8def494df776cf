// make_plan() and two of its passes: common subexpressions, and fusion of pointwise ops to chains.
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/plan.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <unordered_map>

namespace tg::detail {

uint32_t Graph::find(uint32_t s) {
  while (slots[s].group != s) s = slots[s].group = slots[slots[s].group].group;
  return s;
}

uint32_t enabled_passes() {
  static constexpr std::pair<std::string_view, Pass> kNames[] = {
      {"cse", kCommonSubexpressions}, {"rewrite", kRewrite}, {"fuse", kElementwiseFusion}, {"order", kSchedule},
      {"inplace", kInPlace},          {"arena", kArena},     {"branch", kBranches}};
  const char* text = std::getenv("TG_PASSES");  // read each time: tests set it
  uint32_t on = kAllPasses;
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word.empty()) continue;
    const auto* const it = std::find_if(std::begin(kNames), std::end(kNames),
                                        [&](const auto& n) { return word.size() > 1 && n.first == word.substr(1); });
    TG_CHECK(word[0] == '-' && it != std::end(kNames), value,
             "[eval] TG_PASSES is '{}', but '{}' is unknown. It is a comma-separated list of passes to switch "
             "off: -cse, -rewrite, -fuse, -order, -inplace, -arena and -branch.",
             text, word);
    on &= ~uint32_t(it->second);
  }
  return on;
}

namespace {

// Per node: its results or their views are visible afterwards.
std::vector<uint8_t> visible_nodes(const Graph& g) {
  std::vector<uint8_t> visible(g.nodes.size());
  for (auto i = uint32_t(g.nodes.size()); i-- > 0;) {
    const Node& node = *g.nodes[i];
    for (size_t k = 0; k < node.out.size(); ++k) visible[i] |= uint8_t(g.slots[g.output(i, k)].pinned);
    if (!visible[i]) continue;
    for (const Out& o : node.out)
      if (o.layout.aliases_input >= 0)
        if (const uint32_t base = g.slots[g.inputs(i)[size_t(o.layout.aliases_input)]].node; base != kNone)
          visible[base] = 1;
  }
  return visible;
}
// Per node: an earlier equal node (op, attributes, inputs) or kNone. At most one is visible: a write to one tensor must
// not change another.
std::vector<uint32_t> eliminate_common_subexpressions(const Graph& g, bool on) {
  const auto n = uint32_t(g.nodes.size());
  std::vector<uint32_t> duplicate_of(n, kNone), canonical(g.slots.size());
  for (uint32_t s = 0; s < canonical.size(); ++s) canonical[s] = s;
  if (!on) return duplicate_of;
  std::vector<uint8_t> visible = visible_nodes(g);  // results of a node or its duplicates
  std::unordered_map<StructuralHash, uint32_t, StructuralHasher> seen;
  for (uint32_t i = 0; i < n; ++i) {
    const Node& node = *g.nodes[i];
    const Traits traits = node.op->traits();
    if (traits.dynamic_attributes || traits.communicates || traits.kind == OpKind::view || node.in.empty()) continue;
    StructuralHash key;
    key.add(node.op->type());
    node.op->key(key);
    key.add(node.is_recomputation);  // otherwise the first result stays alive for the second
    for (const uint32_t s : g.inputs(i)) key.add(uint64_t(canonical[s]));
    const auto [it, fresh] = seen.try_emplace(key, i);
    if (fresh || (visible[i] && visible[it->second])) continue;
    visible[it->second] |= visible[i];
    duplicate_of[i] = it->second;
    for (size_t k = 0; k < node.out.size(); ++k) canonical[g.output(i, k)] = g.output(it->second, k);
  }
  return duplicate_of;
}

// An input's strides as a matrix (rows, columns). False if there are none.
bool strides_2d_of(const Layout& in, int64_t rows, int64_t columns, const Shape& shape, int64_t& row, int64_t& column) {
  if (in.shape == shape && in.is_contiguous()) return row = columns, column = 1, true;
  const int64_t n = in.numel();
  if (n == 1) return row = column = 0, true;
  if (!in.is_contiguous()) return false;
  Shape s = in.shape;  // broadcast with 1s in front
  Shape full = Shape::filled(shape.size() - s.size(), 1);
  for (const int64_t d : s) full.push_back(d);
  int64_t tail = 1;  // equal trailing dimensions
  size_t d = shape.size();
  while (d > 0 && full[d - 1] == shape[d - 1]) tail *= shape[--d];
  if (tail == n && tail == columns) return row = 0, column = 1, true;  // one row
  // One column: equal leading dimensions, then 1s.
  int64_t head = 1;
  size_t e = 0;
  while (e < shape.size() && full[e] == shape[e] && head < n) head *= shape[e++];
  if (head == n && head == rows) return row = 1, column = 0, true;
  return false;
}
// Columns that make `in` a (row, column) broadcast of `shape`. 0: any. -1: none.
int64_t columns_of(const Layout& in, const Shape& shape) {
  const int64_t n = in.numel(), all = shape.product();
  if ((in.shape == shape && in.is_contiguous()) || n == 1) return 0;
  int64_t row = 0, column = 0;
  if (n > 0 && all % n == 0)
    for (const int64_t columns : {n, all / n})
      if (strides_2d_of(in, all / columns, columns, shape, row, column)) return columns;
  return -1;
}

// A growing chain. It runs at its last node: once an outside node reads it, no later one may join.
struct Cluster {
  std::vector<uint32_t> nodes;
  int64_t columns = 0;  // 0: any
  bool open = true;
};
constexpr size_t kMostFused = 24;

class Clusters {
 public:
  Clusters(const Graph& g, const std::vector<uint32_t>& duplicate_of, const std::vector<uint8_t>& busy)
      : g_(g), busy_(busy), of_(g.nodes.size(), kNone) {
    for (uint32_t i = 0; i < g.nodes.size(); ++i) visit(i, duplicate_of[i]);
  }
  std::vector<Cluster>& all() { return all_; }

 private:
  bool may_join(uint32_t i, int64_t& columns) const {
    const Node& n = *g_.nodes[i];
    if (busy_[i] || n.op->traits().kind != OpKind::pointwise || n.out.size() != 1 || has_failed(n)) return false;
    const Layout& out = n.out[0].layout;
    if (out.aliases_input >= 0 || out.numel() == 0 || !out.is_contiguous() || !n.op->supports(out.device.backend) ||
        !detail::runtime_of(out.device).runs_in_chains(*n.op))
      return false;
    columns = 0;
    for (const Edge& e : n.in)
      if (!agree(columns, columns_of(e.value->layout, out.shape))) return false;
    return true;
  }
  static bool agree(int64_t& columns, int64_t want) {
    if (want < 0 || (columns && want && columns != want)) return false;
    if (want) columns = want;
    return true;
  }
  void visit(uint32_t i, uint32_t duplicate_of) {
    if (duplicate_of != kNone) {
      if (of_[duplicate_of] != kNone) all_[of_[duplicate_of]].open = false;
      return;
    }
    int64_t columns = 0;
    const bool joins = may_join(i, columns);
    uint32_t mine = kNone;
    if (joins) {
      const Layout& out = g_.nodes[i]->out[0].layout;
      for (const uint32_t s : g_.inputs(i)) {
        const uint32_t c = producer_cluster(s);
        if (c == kNone || c == mine || !all_[c].open) continue;
        const Layout& made = g_.nodes[g_.slots[s].node]->out[0].layout;
        const size_t size = all_[c].nodes.size() + (mine == kNone ? 1 : all_[mine].nodes.size() + 1);
        int64_t common = columns;
        if (made.shape != out.shape || made.device != out.device || size > kMostFused ||
            !agree(common, all_[c].columns))
          continue;
        columns = common;
        if (mine == kNone)
          mine = c;
        else
          merge(mine, c);
      }
      if (mine == kNone) mine = uint32_t(all_.size()), all_.emplace_back();
      all_[mine].nodes.push_back(i);
      all_[mine].columns = columns;
      of_[i] = mine;
    }
    for (const uint32_t s : g_.inputs(i))
      if (const uint32_t c = producer_cluster(s); c != kNone && c != mine) all_[c].open = false;
  }
  void merge(uint32_t into, uint32_t from) {
    for (const uint32_t n : all_[from].nodes) of_[n] = into;
    auto& nodes = all_[into].nodes;
    nodes.insert(nodes.end(), all_[from].nodes.begin(), all_[from].nodes.end());
    std::sort(nodes.begin(), nodes.end());
    all_[from] = {};
    all_[from].open = false;
  }
  uint32_t producer_cluster(uint32_t slot) const {
    const uint32_t n = g_.slots[slot].node;
    return n == kNone ? kNone : of_[n];
  }

  const Graph& g_;
  const std::vector<uint8_t>& busy_;
  std::vector<uint32_t> of_;  // each node's cluster
  std::vector<Cluster> all_;
};

// Gives temporaries tile buffers, free again after their last reader.
void share_scratch(ChainPlan& p) {
  std::vector<uint32_t> readers(p.buffers.size()), free;
  for (const ChainPlan::Use& u : p.uses)
    for (const uint32_t b : u.in) ++readers[b];
  for (const ChainPlan::Use& u : p.uses) {
    if (ChainPlan::Buffer& out = p.buffers[u.out]; out.kind == ChainPlan::Buffer::Kind::temporary) {
      if (free.empty()) free.push_back(p.scratch++);
      out.index = free.back();
      free.pop_back();
    }
    for (const uint32_t b : u.in)
      if (--readers[b] == 0 && p.buffers[b].kind == ChainPlan::Buffer::Kind::temporary)
        free.push_back(p.buffers[b].index);
  }
}
// Buffers of a chain: results with outside readers are outputs, others temporaries.
ChainPlan chain_of(const Graph& g, const Cluster& c, const std::vector<uint8_t>& has_duplicate) {
  using Buffer = ChainPlan::Buffer;
  ChainPlan p;
  const Shape& shape = g.nodes[c.nodes[0]]->out[0].layout.shape;
  const int64_t all = shape.product();
  p.columns = c.columns ? c.columns : all;
  p.rows = all / p.columns;
  std::map<uint32_t, uint32_t> buffer, inside;  // buffer of a slot; uses of a slot in the chain
  for (const uint32_t n : c.nodes)
    for (const uint32_t s : g.inputs(n)) ++inside[s];
  for (uint32_t k = 0; k < c.nodes.size(); ++k) {
    const uint32_t n = c.nodes[k];
    ChainPlan::Use use;
    for (uint32_t i = 0; i < g.inputs(n).size(); ++i) {
      const uint32_t s = g.inputs(n)[i];
      const auto [it, fresh] = buffer.try_emplace(s, uint32_t(p.buffers.size()));
      if (fresh) {
        Buffer b{g.slots[s].layout->dtype, 0, 0, Buffer::Kind::input, k, i};
        strides_2d_of(*g.slots[s].layout, p.rows, p.columns, shape, b.row_step, b.column_step);
        p.buffers.push_back(b);
      }
      use.in.emplace_back(it->second);
    }
    const uint32_t s = g.output(n, 0);
    const bool temporary = !g.slots[s].pinned && !has_duplicate[n] && inside[s] == g.slots[s].uses;
    use.out = buffer[s] = uint32_t(p.buffers.size());
    p.buffers.push_back(
        {g.slots[s].layout->dtype, p.columns, 1, temporary ? Buffer::Kind::temporary : Buffer::Kind::output, k, 0});
    p.uses.push_back(std::move(use));
  }
  share_scratch(p);
  return p;
}

// A step per node, chain or replacement in emission order, at its last node.
std::vector<Step> initial_steps(const Graph& g, const std::vector<uint32_t>& duplicate_of,
                                const std::vector<uint8_t>& has_duplicate, uint32_t passes) {
  const auto n = uint32_t(g.nodes.size());
  std::vector<Step> at(n);
  std::vector<uint8_t> busy(has_duplicate);  // unavailable to rules
  for (uint32_t i = 0; i < n; ++i) {
    at[i].nodes = {i}, at[i].duplicate_of = duplicate_of[i];
    busy[i] |= uint8_t(duplicate_of[i] != kNone);
  }
  const auto unite = [&](const std::vector<uint32_t>& nodes) -> Step& {
    for (const uint32_t i : nodes) at[i].nodes.clear();
    at[nodes.back()].nodes = nodes;
    return at[nodes.back()];
  };
  std::vector<uint8_t> rewritten(n);
  if (passes & kRewrite)
    for (Rewrite& r : find_rewrites(g, busy)) {
      for (const uint32_t i : r.nodes) rewritten[i] = 1;
      unite(r.nodes).replacement = std::move(r.replacement);
    }
  if (passes & kElementwiseFusion) {
    Clusters clusters(g, duplicate_of, rewritten);
    for (const Cluster& c : clusters.all())
      if (c.nodes.size() > 1) unite(c.nodes).chain = chain_of(g, c, has_duplicate);
  }
  std::erase_if(at, [](const Step& s) { return s.nodes.empty(); });
  return at;
}

}  // namespace

std::vector<Operation> operations(const Graph& g, const Step& s) {
  std::vector<Operation> r;
  if (s.replacement) {
    const Replacement& f = *s.replacement;
    Operation& o = r.emplace_back();
    o.op = f.op([&](size_t k) -> const Node& { return *g.nodes[s.nodes[k]]; });
    for (const Port& p : f.in) o.in.push_back(g.inputs(s.nodes[p.node])[p.index]);
    for (const Port& p : f.out) o.out.push_back(g.output(s.nodes[p.node], p.index));
    for (const Layout& l : f.layouts) o.layouts.push_back(&l);
    return r;
  }
  for (size_t k = 0; k < s.nodes.size(); ++k) {
    const Node& n = *g.nodes[s.nodes[k]];
    Operation& o = r.emplace_back();
    o.op = n.op;
    o.in.assign(g.inputs(s.nodes[k]).begin(), g.inputs(s.nodes[k]).end());
    for (size_t i = 0; i < n.out.size(); ++i) {
      const bool inside =
          s.nodes.size() > 1 && s.chain.buffers[s.chain.uses[k].out].kind == ChainPlan::Buffer::Kind::temporary;
      o.out.push_back(inside ? kNone : g.output(s.nodes[k], i));
      o.layouts.push_back(&n.out[i].layout);
    }
  }
  return r;
}

namespace {
size_t bytes_of(const Graph& g, const Plan& plan) {
  size_t n = 0;
  for (const Plan::Arena& a : plan.arenas) n += a.bytes;
  for (uint32_t s = 0; s < g.slots.size(); ++s)
    if (g.slots[s].group == s && g.slots[s].pinned && g.slots[s].node != kNone) n += g.slots[s].layout->bytes();
  return n;
}
void place(Graph& g, Plan& plan, uint32_t passes) {
  if (!(passes & kSchedule) || !(passes & kArena)) return assign_buffers(g, plan, passes);
  const Orders orders = orders_of(g, plan.steps);
  const auto in_order = [&](const std::vector<uint32_t>& order) {
    Plan r = plan;
    for (size_t t = 0; t < order.size(); ++t) r.steps[t] = plan.steps[order[t]];
    return r;
  };
  Graph other_graph;
  Plan other;
  if (orders.compact != orders.emitted) other_graph = g, other = in_order(orders.compact);
  if (!std::ranges::is_sorted(orders.emitted)) plan = in_order(orders.emitted);
  assign_buffers(g, plan, passes);
  if (other.steps.empty()) return;
  assign_buffers(other_graph, other, passes);
  if (bytes_of(other_graph, other) >= bytes_of(g, plan)) return;
  g = std::move(other_graph);
  plan = std::move(other);
}
}  // namespace

Plan make_plan(Graph& g, uint32_t passes) {
  const std::vector<uint32_t> duplicate_of = eliminate_common_subexpressions(g, passes & kCommonSubexpressions);
  Plan plan;
  plan.has_duplicate.assign(g.nodes.size(), 0);
  for (const uint32_t t : duplicate_of)
    if (t != kNone) plan.has_duplicate[t] = 1;
  plan.steps = initial_steps(g, duplicate_of, plan.has_duplicate, passes);
  place(g, plan, passes);
  dump(g, plan);
  return plan;
}

}  // namespace tg::detail
