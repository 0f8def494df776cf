// evaluate() of several nodes: collect unfinished ancestors, order by seq, look the plan up by structural key, run.
// A plan holds what can be decided from structure and liveness alone; here that is who takes whose storage.
#include <tapegrad/core/evaluate.h>

#include <algorithm>
#include <unordered_map>

namespace tg {
namespace detail {
EngineStats& mutable_stats();

namespace {
struct Slot {
  const Value* value;
  uint32_t uses = 0, group = 0, last = 0;
  bool pinned = false;
  uint32_t reads = 0;  // of its group, by the node that is planned now
};
struct Graph {  // the nodes of one evaluation; slots number every value in it
  std::vector<Ref<Node>> nodes;
  std::vector<Slot> slots;
  std::vector<uint32_t> in;  // slot of each input, flattened
};

void collect(Graph& g, Inputs roots) {  // explicit stack: 10^6 levels are fine
  const uint64_t mark = next_mark();
  std::vector<Node*> stack;
  auto visit = [&](Node* n) {
    if (!n || n->done || n->mark == mark) return;
    n->mark = mark;
    stack.push_back(n);
    g.nodes.emplace_back(n);
  };
  for (auto& r : roots)
    if (r) visit(r.value()->producer.get());
  while (!stack.empty()) {
    Node* n = stack.back();
    stack.pop_back();
    for (auto& e : n->in) visit(e.value->producer.get());
  }
  std::sort(g.nodes.begin(), g.nodes.end(), [](auto& a, auto& b) { return a->seq < b->seq; });
}

// Structure (ops, keys, edges, layouts of leaves) and liveness (who is held from outside): both decide what a plan may
// do.
Key key_of(Graph& g) {
  Key key;
  std::unordered_map<const Value*, uint32_t> leaves;
  for (auto& n : g.nodes) {
    key.add(n->op->type());
    n->op->key(key);
    key.add(uint64_t(n->tape() ? n->tracked : 0) << 32 | n->in.size());
    key.add(uint64_t(n->out.size()));
    for (auto& e : n->in) {
      const Value* v = e.value.get();
      uint32_t s;
      if (v->producer && !v->producer->done) {
        s = v->producer->slot + v->index;
      } else {
        auto [it, fresh] = leaves.try_emplace(v, uint32_t(g.slots.size()));
        s = it->second;
        if (fresh) {
          const bool shared = v->storage.use_count() != 1 || !fills_storage(v->layout, v->storage->bytes);
          g.slots.push_back({v, 0, s, 0, shared});
          key.add(v->layout.shape);
          key.add(v->layout.strides);
          key.add(uint64_t(v->layout.offset) << 16 | uint64_t(v->layout.dtype) << 8 |
                  uint64_t(v->layout.device.backend));
        }
      }
      g.in.push_back(s);
      key.add(uint64_t(s));
      ++g.slots[s].uses;
    }
    n->slot = uint32_t(g.slots.size());
    for (auto& o : n->out) {
      key.add(o.layout.shape);  // ops without inputs have their shape from attributes
      g.slots.push_back({o.live, 0, uint32_t(g.slots.size())});
    }
  }
  for (auto& s : g.slots) {  // more references than uses: a handle, the tape, or a node outside this plan
    if (s.value) s.pinned |= s.value->refs.load(std::memory_order_acquire) != s.uses;
    key.add(uint64_t(s.pinned));
  }
  return key;
}

using Plan = std::vector<Donors>;
void group_views(Graph& g) {  // views join the group of what they view; a group is free after its last use
  auto& s = g.slots;
  const uint32_t* in = g.in.data();
  for (uint32_t step = 0; step < g.nodes.size(); in += g.nodes[step++]->in.size()) {
    Node& n = *g.nodes[step];
    const Mask keep_in = n.tape() ? n.op->saves_in(n.tracked) : 0, keep_out = n.tape() ? n.op->saves_out(n.tracked) : 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      Slot& group = s[s[in[i]].group];
      group.last = step;
      group.pinned |= (keep_in & bit(i)) != 0;
    }
    for (size_t i = 0; i < n.out.size(); ++i) {
      Slot& o = s[n.slot + i];
      if (const int a = n.out[i].layout.aliases_input; a >= 0) o.group = s[in[a]].group;
      s[o.group].pinned |= o.pinned || (keep_out & bit(i));
    }
  }
}
Plan make_plan(Graph& g) {
  group_views(g);
  Plan plan;
  auto& s = g.slots;
  const uint32_t* in = g.in.data();
  for (uint32_t step = 0; step < g.nodes.size(); in += g.nodes[step++]->in.size()) {
    const Node& n = *g.nodes[step];
    const auto group_of = [&](size_t i) -> Slot& { return s[s[in[i]].group]; };
    for (size_t i = 0; i < n.in.size(); ++i) ++group_of(i).reads;
    plan.push_back(choose_donors(n, [&](size_t i) {
      const Slot& group = group_of(i);  // read twice: add(a, transpose(a))
      return group.reads == 1 && group.last == step && !group.pinned &&
             fills_storage(n.in[i].value->layout, group.value ? group.value->layout.bytes() : 0);
    }));
    for (size_t i = 0; i < n.in.size(); ++i) group_of(i).reads = 0;
  }
  return plan;
}
}  // namespace
}  // namespace detail

void evaluate(Inputs roots) {
  using namespace detail;
  Graph g;
  collect(g, roots);
  if (g.nodes.empty()) return;
  ++mutable_stats().evaluations;
  if (g.nodes.size() == 1) return run_node(*g.nodes[0], eager_donors(*g.nodes[0]));
  struct Hash {
    size_t operator()(const Key& k) const { return k.a; }
  };
  thread_local std::unordered_map<Key, Plan, Hash> cache;
  const Key key = key_of(g);
  auto it = cache.find(key);
  if (it == cache.end()) {
    if (cache.size() >= 64) cache.clear();
    it = cache.emplace(key, make_plan(g)).first;
    ++mutable_stats().plans;
  } else {
    ++mutable_stats().replays;
  }
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Ref<Node> n = std::move(g.nodes[i]);  // released as we go: a long graph ends node by node
    run_node(*n, it->second[i]);
  }
}
}  // namespace tg
