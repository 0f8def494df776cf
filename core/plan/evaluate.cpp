// eval() collects ancestors to run, sorts them by seq, and runs their cached or new plan.
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/plan/plan.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace tg {
namespace detail {
Graph collect(Inputs roots, const WritesValues* alone) {  // explicit stack: graphs may be 10^6 deep
  Graph g;
  const uint64_t mark = next_mark();
  const ReadsValues reads;
  std::vector<Node*> stack;
  auto visit = [&](const Ref<Value>& v) {
    if (reads.is_running(*v)) return void(g.running = v);
    Node* const n = v->producer.get();
    if (!n || n->done || n->mark == mark) return;
    if (n->error && n->error == error_of_traced() && !tracing()) [[unlikely]]
      ++g_reads_elsewhere, check_alive(*n);
    if (alone) alone->check_unused(*n);
    n->mark = mark;
    stack.push_back(n);
    g.nodes.emplace_back(n);
  };
  for (auto& r : roots)
    if (r) visit(r.value());
  while (!stack.empty() && !g.running) {
    Node* n = stack.back();
    stack.pop_back();
    for (auto& e : n->in) visit(e.value);
  }
  std::sort(g.nodes.begin(), g.nodes.end(), [](auto& a, auto& b) { return a->seq < b->seq; });
  return g;
}

StructuralHash number(Graph& g) {
  StructuralHash key;
  std::unordered_map<const Value*, uint32_t> leaves;
  const auto add_slot = [&](const Value* v, const Layout& l, uint32_t node, bool pinned) {
    const auto s = uint32_t(g.slots.size());
    g.slots.push_back({.value = v, .layout = &l, .node = node, .group = s, .pinned = pinned});
    return s;
  };
  for (uint32_t i = 0; i < g.nodes.size(); ++i) {
    Node& n = *g.nodes[i];
    g.first_in.push_back(uint32_t(g.in.size()));
    key.add(n.op->type());
    n.op->key(key);
    key.add(uint64_t(n.tape() ? n.tracked : 0) << 32 | n.in.size());
    key.add(uint64_t(n.out.size()) << 1 | uint64_t(n.is_recomputation));
    const Mask keep_in = n.kept_inputs();
    for (size_t k = 0; k < n.in.size(); ++k) {
      const Value* v = n.in[k].value.get();
      uint32_t s;
      if (v->producer && !v->producer->done) {
        s = v->producer->slot + v->index;
      } else {
        auto [it, fresh] = leaves.try_emplace(v, uint32_t(g.slots.size()));
        s = it->second;
        if (fresh) {
          const Layout& l = v->layout;
          add_slot(v, l, kNone, v->storage.use_count() != 1 || !fills_storage(l, v->storage->bytes));
          key.add(l.shape);
          key.add(l.strides);
          key.add(uint64_t(l.offset) << 16 | uint64_t(l.dtype) << 8 | uint64_t(l.device.backend));
          key.add(l.device.index);
        }
      }
      g.in.push_back(s);
      key.add(uint64_t(s));
      ++g.slots[s].uses;
      g.slots[s].pinned |= (keep_in & mask_of(k)) != 0;
    }
    n.slot = uint32_t(g.slots.size());
    const Mask keep_out = n.tape() ? n.op->saves_out(n.tracked) : 0;
    for (size_t k = 0; k < n.out.size(); ++k) {
      key.add(n.out[k].layout.shape);  // shape of ops without inputs
      add_slot(n.out[k].live, n.out[k].layout, i, keep_out & mask_of(k));
    }
  }
  g.first_in.push_back(uint32_t(g.in.size()));
  std::erase_if(g.held, [&](const Ref<Value>& v) {
    const Node* n = v->producer.get();
    return n && g.slots[n->slot + v->index].uses;
  });
  // More references than uses: held by a handle, the tape, or another plan's node.
  for (auto& s : g.slots) {
    if (s.value) s.pinned |= s.value->refs.load(std::memory_order_acquire) != s.uses;
    key.add(uint64_t(s.pinned));
  }
  return key;
}

namespace {
void run(Graph& g, const Plan& plan) {
  std::vector<Ref<Storage>> arenas;
  for (const Plan::Arena& a : plan.arenas) arenas.push_back(make_ref<Storage>(a.device, a.bytes));
  const BufferAssignment buffers{plan.slices, arenas};
  std::unordered_map<uint32_t, OutputStorages> kept;  // results for duplicates
  std::vector<Ref<Node>> nodes;
  try {
    for (const Step& step : plan.steps) {
      nodes.clear();
      for (const uint32_t n : step.nodes) nodes.push_back(std::move(g.nodes[n]));  // frees node by node
      const auto keep = [&](size_t k, OutputStorages made) {
        if (plan.has_duplicate[step.nodes[k]]) kept.emplace(step.nodes[k], std::move(made));
      };
      if (step.duplicate_of != kNone) {
        check_alive(*nodes[0]);
        commit_outputs(*nodes[0], kept.at(step.duplicate_of));
      } else if (step.replacement) {
        run_nodes_as_one(nodes, *step.replacement, step.donors[0], buffers);
      } else if (nodes.size() == 1) {
        keep(0, run_node(*nodes[0], step.donors[0], buffers));
      } else {
        std::vector<OutputStorages> made = run_nodes_as_chain(nodes, step.chain, step.donors, buffers);
        for (size_t k = 0; k < made.size(); ++k) keep(k, std::move(made[k]));
      }
    }
  } catch (...) {
    wait_for_async();  // asynchronous kernels use arenas
    for (const auto& n : nodes) abandon(*n);
    throw;
  }
}
bool any_pending(Inputs roots) {
  const ReadsValues reads;
  return std::ranges::any_of(roots, [](const Tensor& r) {
    if (!r) return false;
    const Value& v = *r.value();
    return v.runner.load(std::memory_order_acquire) || (v.producer && !v.producer->done);
  });
}
// Holds nodes so that no other thread runs them.
class Claim {
 public:
  explicit Claim(Inputs roots) {
    while (const Ref<Value> running = claim(roots)) wait_until_run(*running);
    ++t_reader->runs;
  }
  ~Claim() {
    for (const auto& n : graph.nodes)
      if (n) abandon(*n);
    --t_reader->runs;
  }
  Claim(const Claim&) = delete;
  Graph graph;

 private:
  Ref<Value> claim(Inputs roots) {
    const WritesValues alone;
    graph = collect(roots, &alone);
    if (graph.running) return graph.nodes.clear(), std::move(graph.running);
    for (const Tensor& r : roots)
      if (r && r.value()->producer && !r.value()->producer->done) graph.held.push_back(r.value());
    for (const auto& n : graph.nodes) {
      alone.claim(*n);
      for (Out& o : n->out) {
        Value* const v = alone.owned(o);
        if (v) v->runner.store(alone.thread().id, std::memory_order_relaxed);
        if (v && n->out.size() > 1) graph.held.emplace_back(v);
      }
    }
    return nullptr;
  }
};
}  // namespace
}  // namespace detail

void eval(Inputs roots) {
  using namespace detail;
  for (const Tensor& r : roots)
    if (r) host_reads(r);
  if (!any_pending(roots)) return;
  Claim claim(roots);
  Graph& g = claim.graph;
  if (g.nodes.empty()) return;
  const DefaultFloatMode mode;
  ++mutable_stats().evaluations;
  mutable_stats().nodes += g.nodes.size();
  if (g.nodes.size() == 1) {
    run_node(*g.nodes[0], eager_donors(*g.nodes[0]));
    return;
  }
  // shared_ptr: an op's eval() may clear the cache during this plan.
  thread_local std::unordered_map<StructuralHash, std::shared_ptr<const Plan>, StructuralHasher> cache;
  uint32_t passes = enabled_passes() & ~uint32_t(kBranches);  // nothing is recorded
  if (anomaly_enabled()) passes &= ~uint32_t(kElementwiseFusion | kRewrite);
  StructuralHash key = number(g);
  key.add(uint64_t(passes));
  auto it = cache.find(key);
  if (it == cache.end()) {
    if (cache.size() >= 64) cache.clear();
    it = cache.emplace(key, std::make_shared<const Plan>(make_plan(g, passes))).first;
    ++mutable_stats().plans;
    for (const Plan::Arena& a : it->second->arenas) {
      mutable_stats().planned_bytes += a.bytes;
      mutable_stats().planned_live_bytes += a.live;
    }
  } else {
    ++mutable_stats().replays;
  }
  const std::shared_ptr<const Plan> plan = it->second;
  run(g, *plan);
}
}  // namespace tg
