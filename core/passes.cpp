// The passes that make a plan of a graph, in the order in which make_plan() calls them.
#include <tapegrad/core/plan.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <unordered_map>

namespace tg::detail {

uint32_t Graph::find(uint32_t s) {
  while (slots[s].group != s) s = slots[s].group = slots[slots[s].group].group;
  return s;
}

uint32_t enabled_passes() {
  static constexpr std::pair<std::string_view, Pass> kNames[] = {
      {"merge", kMerge}, {"fuse", kFuse}, {"inplace", kInPlace}, {"arena", kArena}};
  const char* text = std::getenv("TG_PASSES");  // read for every plan: tests set it
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
             "[evaluate] TG_PASSES is '{}', and '{}' is not known. It lists what to switch off, of -merge, -fuse, "
             "-inplace and -arena, with commas between them.",
             text, word);
    on &= ~uint32_t(it->second);
  }
  return on;
}

namespace {

// --- merge: nodes with the same op, attributes and inputs run once
// ----------------------------------------------------
struct KeyHash {
  size_t operator()(const Key& k) const { return k.a; }
};
std::vector<uint32_t> merged(const Graph& g, bool on) {
  const auto n = uint32_t(g.nodes.size());
  std::vector<uint32_t> twin(n, kNone), canonical(g.slots.size());
  for (uint32_t s = 0; s < canonical.size(); ++s) canonical[s] = s;
  if (!on) return twin;
  std::unordered_map<Key, uint32_t, KeyHash> seen;
  for (uint32_t i = 0; i < n; ++i) {
    const Node& node = *g.nodes[i];
    const Traits traits = node.op->traits();
    if (traits.varies || traits.kind == Kind::view || node.in.empty()) continue;
    Key key;
    key.add(node.op->type());
    node.op->key(key);
    for (const uint32_t s : g.inputs(i)) key.add(uint64_t(canonical[s]));
    const auto [it, fresh] = seen.try_emplace(key, i);
    if (fresh) continue;
    twin[i] = it->second;
    for (size_t k = 0; k < node.out.size(); ++k) canonical[g.output(i, k)] = g.output(it->second, k);
  }
  return twin;
}

// --- fuse: chains of pointwise ops
// ------------------------------------------------------------------------------------ How an input is read by (rows,
// columns): false if it is not by two steps.
bool steps_of(const Layout& in, int64_t rows, int64_t columns, const Shape& shape, int64_t& row, int64_t& column) {
  if (in.shape == shape && in.is_contiguous()) return row = columns, column = 1, true;
  const int64_t n = in.numel();
  if (n == 1) return row = column = 0, true;
  if (!in.is_contiguous()) return false;
  Shape s = in.shape;  // as broadcast: 1s in front
  Shape full = Shape::filled(shape.size() - s.size(), 1);
  for (const int64_t d : s) full.push_back(d);
  int64_t tail = 1;  // trailing dimensions that agree
  size_t d = shape.size();
  while (d > 0 && full[d - 1] == shape[d - 1]) tail *= shape[--d];
  if (tail == n && tail == columns) return row = 0, column = 1, true;  // one row for all
  // one column for all: leading dimensions agree, the rest are 1
  int64_t head = 1;
  size_t e = 0;
  while (e < shape.size() && full[e] == shape[e] && head < n) head *= shape[e++];
  if (head == n && head == rows) return row = 1, column = 0, true;
  return false;
}
// The number of columns that the input wants: 0 where any will do, -1 where none.
int64_t columns_of(const Layout& in, const Shape& shape) {
  const int64_t n = in.numel(), all = shape.product();
  if ((in.shape == shape && in.is_contiguous()) || n == 1) return 0;
  int64_t row = 0, column = 0;
  if (n > 0 && all % n == 0)
    for (const int64_t columns : {n, all / n})
      if (steps_of(in, all / columns, columns, shape, row, column)) return columns;
  return -1;
}

struct Cluster {
  std::vector<uint32_t> nodes;
  int64_t columns = 0;  // 0: any
  bool open = true;     // nobody else has read what it makes
};
constexpr size_t kMostFused = 24;

class Clusters {
 public:
  Clusters(const Graph& g, const std::vector<uint32_t>& twin) : g_(g), of_(g.nodes.size(), kNone) {
    for (uint32_t i = 0; i < g.nodes.size(); ++i) visit(i, twin[i]);
  }
  std::vector<Cluster>& all() { return all_; }

 private:
  bool may_join(uint32_t i, int64_t& columns) const {
    const Node& n = *g_.nodes[i];
    if (n.op->traits().kind != Kind::pointwise || n.out.size() != 1 || n.error) return false;
    const Layout& out = n.out[0].layout;
    if (out.aliases_input >= 0 || out.numel() == 0 || !out.is_contiguous() || !n.op->supports(out.device.backend) ||
        !runtime_of(out.device).runs_chains())
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
  void visit(uint32_t i, uint32_t twin) {
    if (twin != kNone) {
      close(twin);
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
  void close(uint32_t node) {
    if (of_[node] != kNone) all_[of_[node]].open = false;
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
  std::vector<uint32_t> of_;  // cluster of each node
  std::vector<Cluster> all_;
};

// Buffers of a chain: a result that somebody reads later is an output, else it lives within a tile.
ChainPlan chain_of(const Graph& g, const Cluster& c, const std::vector<uint8_t>& has_twin) {
  using Buffer = ChainPlan::Buffer;
  ChainPlan p;
  const Shape& shape = g.nodes[c.nodes[0]]->out[0].layout.shape;
  const int64_t all = shape.product();
  p.columns = c.columns ? c.columns : all;
  p.rows = all / p.columns;
  std::map<uint32_t, uint32_t> buffer, inside;  // of a slot; uses within the chain
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
        steps_of(*g.slots[s].layout, p.rows, p.columns, shape, b.row_step, b.column_step);
        p.buffers.push_back(b);
      }
      use.in.emplace_back(it->second);
    }
    const uint32_t s = g.output(n, 0);
    const bool temporary = !g.slots[s].pinned && !has_twin[n] && inside[s] == g.slots[s].uses;
    use.out = buffer[s] = uint32_t(p.buffers.size());
    p.buffers.push_back(
        {g.slots[s].layout->dtype, p.columns, 1, temporary ? Buffer::Kind::temporary : Buffer::Kind::output, k, 0});
    p.uses.push_back(std::move(use));
  }
  return p;
}

// --- order: a chain runs where its last node stands
// -------------------------------------------------------------------
std::vector<Step> steps_of(const Graph& g, const std::vector<uint32_t>& twin, const std::vector<uint8_t>& has_twin,
                           bool fuse) {
  const auto n = uint32_t(g.nodes.size());
  std::vector<Step> at(n);
  for (uint32_t i = 0; i < n; ++i) at[i].nodes = {i}, at[i].twin = twin[i];
  if (fuse) {
    Clusters clusters(g, twin);
    for (const Cluster& c : clusters.all()) {
      if (c.nodes.size() < 2) continue;
      for (const uint32_t i : c.nodes) at[i].nodes.clear();
      Step& s = at[c.nodes.back()];
      s.nodes = c.nodes;
      s.chain = chain_of(g, c, has_twin);
    }
  }
  std::erase_if(at, [](const Step& s) { return s.nodes.empty(); });
  return at;
}

// --- lifetimes
// --------------------------------------------------------------------------------------------------------
void join(Graph& g, uint32_t a, uint32_t b) {  // b's group becomes a's
  a = g.find(a), b = g.find(b);
  if (a == b) return;
  Slot &to = g.slots[a], &from = g.slots[b];
  from.group = a;
  to.first = std::min(to.first, from.first);
  to.last = std::max(to.last, from.last);
  to.pinned |= from.pinned;
}
void find_lifetimes(Graph& g, const Plan& plan) {
  for (uint32_t t = 0; t < plan.steps.size(); ++t) {
    const Step& step = plan.steps[t];
    for (const uint32_t n : step.nodes) {
      const Node& node = *g.nodes[n];
      const auto in = g.inputs(n);
      for (const uint32_t i : in) {
        Slot& s = g.slots[g.find(i)];
        s.last = std::max(s.last, t);
      }
      for (size_t i = 0; i < node.out.size(); ++i) {
        const uint32_t o = g.output(n, i);
        g.slots[o].first = g.slots[o].last = t;
        if (const int a = node.out[i].layout.aliases_input; a >= 0)
          join(g, in[size_t(a)], o);
        else if (step.twin != kNone)
          join(g, g.output(step.twin, i), o);
        Slot& s = g.slots[g.find(o)];
        s.last = std::max(s.last, t);
      }
    }
  }
}

// --- in place
// --------------------------------------------------------------------------------------------------------- Whether
// input i of node n may be written over by step t, all of whose reads are counted.
bool dies_here(Graph& g, uint32_t n, size_t i, uint32_t t) {
  const uint32_t s = g.inputs(n)[i];
  const Slot& group = g.slots[g.find(s)];
  const Layout& l = *g.slots[s].layout;
  const Layout& root = *group.layout;
  return group.reads == 1 && group.first != t && group.last == t && !group.pinned && fills_storage(l, root.bytes());
}
void choose_in_place(Graph& g, Plan& plan, bool on) {
  for (uint32_t t = 0; t < plan.steps.size(); ++t) {
    Step& step = plan.steps[t];
    if (step.twin != kNone) continue;
    const auto count = [&](int by) {
      for (const uint32_t n : step.nodes)
        for (const uint32_t s : g.inputs(n)) g.slots[g.find(s)].reads += uint32_t(by);
    };
    count(1);
    for (const uint32_t n : step.nodes) {
      const bool temporary = step.nodes.size() > 1 && [&] {
        const size_t k = size_t(std::find(step.nodes.begin(), step.nodes.end(), n) - step.nodes.begin());
        return step.chain.buffers[step.chain.uses[k].out].kind == ChainPlan::Buffer::Kind::temporary;
      }();
      step.donors.push_back(
          choose_donors(*g.nodes[n], [&](size_t i) { return on && !temporary && dies_here(g, n, i, t); }));
    }
    count(-1);
    for (size_t k = 0; k < step.nodes.size(); ++k)
      for (size_t i = 0; i < step.donors[k].size(); ++i)
        if (const int32_t d = step.donors[k][i]; d >= 0)
          join(g, g.inputs(step.nodes[k])[size_t(d)], g.output(step.nodes[k], i));
  }
}

// --- arena: each block at the offset that fits best among those that live at the same time
// ----------------------------
struct Block {
  uint32_t group, first, last;
  size_t bytes, offset = 0;
  size_t crowd = 0;  // the largest sum of blocks that live at one time of its life
};
size_t pack_in_order(std::vector<Block>& blocks) {
  std::vector<const Block*> placed;  // by offset
  size_t end = 0;
  for (Block& b : blocks) {
    size_t at = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (const Block* p : placed) {
      if (p->first > b.last || p->last < b.first) continue;
      if (p->offset >= at + b.bytes && p->offset - at < best_gap) best = at, best_gap = p->offset - at;
      at = std::max(at, p->offset + p->bytes);
    }
    b.offset = best == SIZE_MAX ? at : best;
    end = std::max(end, b.offset + b.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &b,
                                   [](const Block* x, const Block* y) { return x->offset < y->offset; }),
                  &b);
  }
  return end;
}
// Bytes in all, after the order that takes least: those first that live when most is alive (TensorFlow Lite's greedy by
// breadth), or those that are large for long. Also the least that any order could take.
std::pair<size_t, size_t> pack(std::vector<Block>& blocks, size_t steps) {
  std::vector<size_t> alive(steps);
  for (const Block& b : blocks)
    for (uint32_t t = b.first; t <= b.last; ++t) alive[t] += b.bytes;
  for (Block& b : blocks) b.crowd = *std::max_element(alive.begin() + b.first, alive.begin() + b.last + 1);
  std::vector<Block> best;
  size_t end = SIZE_MAX;
  const auto attempt = [&](auto weight) {
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](const Block& a, const Block& b) { return weight(a) > weight(b); });
    if (const size_t e = pack_in_order(blocks); e < end) end = e, best = blocks;
  };
  attempt([](const Block& b) { return std::pair(b.crowd, b.bytes); });
  attempt([](const Block& b) { return std::pair(b.crowd, size_t(b.last - b.first)); });
  attempt([](const Block& b) { return double(b.bytes) * double(b.last - b.first + 1); });
  blocks = std::move(best);
  return {end, *std::max_element(alive.begin(), alive.end())};
}
// Of every tensor in an arena: as the allocators align.
size_t aligned(size_t bytes, Device d) {
  const size_t unit = d.backend == Backend::cpu ? 64 : 256;
  return (bytes + unit - 1) / unit * unit;
}
void choose_places(Graph& g, Plan& plan, bool on) {
  plan.places.assign(g.slots.size(), {});
  if (!on) return;
  std::vector<uint8_t> inside(g.slots.size());  // temporaries of chains need no place
  for (const Step& s : plan.steps)
    if (s.nodes.size() > 1)
      for (const ChainPlan::Buffer& b : s.chain.buffers)
        if (b.kind == ChainPlan::Buffer::Kind::temporary) inside[g.output(s.nodes[b.node], 0)] = 1;
  std::vector<std::vector<Block>> blocks;
  for (uint32_t s = 0; s < g.slots.size(); ++s) {
    const Slot& slot = g.slots[s];
    if (slot.group != s || slot.node == kNone || slot.pinned || inside[s] || slot.layout->bytes() == 0) continue;
    const Device device = slot.layout->device;
    uint32_t a = 0;
    while (a < plan.arenas.size() && plan.arenas[a].device != device) ++a;
    if (a == plan.arenas.size()) plan.arenas.push_back({device}), blocks.emplace_back();
    blocks[a].push_back({s, slot.first, slot.last, aligned(slot.layout->bytes(), device)});
    plan.places[s].arena = a;
  }
  for (size_t a = 0; a < blocks.size(); ++a) {
    std::tie(plan.arenas[a].bytes, plan.arenas[a].live) = pack(blocks[a], plan.steps.size());
    for (const Block& b : blocks[a]) plan.places[b.group].offset = b.offset;
  }
}

}  // namespace

Plan make_plan(Graph& g, uint32_t passes) {
  const std::vector<uint32_t> twin = merged(g, passes & kMerge);
  Plan plan;
  plan.has_twin.assign(g.nodes.size(), 0);
  for (const uint32_t t : twin)
    if (t != kNone) plan.has_twin[t] = 1;
  plan.steps = steps_of(g, twin, plan.has_twin, passes & kFuse);
  find_lifetimes(g, plan);
  choose_in_place(g, plan, passes & kInPlace);
  choose_places(g, plan, passes & kArena);
  dump(g, plan);
  return plan;
}

}  // namespace tg::detail
