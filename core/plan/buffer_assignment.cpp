// Where results of a plan are stored: lifetimes, in-place outputs, and offsets in one arena per device.
//
// The aliasing rule. A group is a set of values that share storage: a value, its views, its duplicates, and outputs
// written in place. Step t may write an output into an input's memory only if all of these hold:
// - the op's Traits allow it, and shapes and dtypes are equal (choose_donors());
// - the group exists before t, the ops of t read it exactly once in total, and no later step reads it;
// - nothing outside the graph (a handle, the tape) holds the group, and the value fills its storage.
// Otherwise two groups share bytes of an arena only if their lifetimes, both ends included, do not overlap. An output
// thus never overlaps another input of its step. Groups that are held outside get separate storage. Leaves are never in
// an arena.
#include <tapegrad/core/plan/plan.h>

#include <algorithm>

namespace tg::detail {
namespace {
void join(Graph& g, uint32_t a, uint32_t b) {
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
        else if (step.duplicate_of != kNone)
          join(g, g.output(step.duplicate_of, i), o);
        Slot& s = g.slots[g.find(o)];
        s.last = std::max(s.last, t);
      }
    }
  }
}

bool dies_here(Graph& g, uint32_t slot, uint32_t t) {
  const Slot& group = g.slots[g.find(slot)];
  return group.reads == 1 && group.first != t && group.last == t && !group.pinned &&
         fills_storage(*g.slots[slot].layout, group.layout->bytes());
}
void choose_in_place(Graph& g, Plan& plan, bool on) {
  for (uint32_t t = 0; t < plan.steps.size(); ++t) {
    Step& step = plan.steps[t];
    if (step.duplicate_of != kNone) continue;
    const std::vector<Operation> ops = operations(g, step);
    const auto count = [&](int by) {
      for (const Operation& o : ops)
        for (const uint32_t s : o.in) g.slots[g.find(s)].reads += uint32_t(by);
    };
    count(1);
    for (const Operation& o : ops)
      step.donors.push_back(choose_donors(
          o.op->traits(), o.in.size(), [&](size_t i) -> const Layout& { return *g.slots[o.in[i]].layout; },
          o.out.size(), [&](size_t k) -> const Layout& { return *o.layouts[k]; },
          [&](size_t i) { return on && o.out[0] != kNone && dies_here(g, o.in[i], t); }));
    count(-1);
    for (size_t k = 0; k < ops.size(); ++k)
      for (size_t i = 0; i < step.donors[k].size(); ++i)
        if (const int32_t d = step.donors[k][i]; d >= 0) join(g, ops[k].in[size_t(d)], ops[k].out[i]);
  }
}

// Values in an arena.
struct Block {
  uint32_t group, first, last;
  size_t bytes, offset = 0;
  size_t crowd = 0;  // peak of live bytes in its lifetime
};
size_t pack_in_order(std::vector<Block>& blocks) {
  std::vector<const Block*> placed;  // sorted by offset
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
// Bytes of the arena, and the peak of live bytes, a lower bound. Best fit in the best of three orders: `crowd`
// (TensorFlow Lite's greedy by breadth), ties by size or lifetime; size times lifetime.
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
// The allocators' alignment.
size_t aligned(size_t bytes, Device d) {
  const size_t unit = d.backend == Backend::cpu ? 64 : 256;
  return (bytes + unit - 1) / unit * unit;
}
// Packing is quadratic: the allocator stores further blocks, as in eager mode.
constexpr size_t kMostPacked = 6000;
// Steps without reuse of memory between branches: the other branch may be that late without delaying a writer.
constexpr uint32_t kRest = 3;
void choose_slices(Graph& g, Plan& plan, bool on, bool branches) {
  plan.slices.assign(g.slots.size(), {});
  if (!on) return;
  std::vector<uint8_t> made(g.slots.size());  // 0: temporary or duplicate
  for (const Step& s : plan.steps)
    if (s.duplicate_of == kNone)
      for (const Operation& o : operations(g, s))
        for (const uint32_t out : o.out)
          if (out != kNone) made[out] = 1;
  std::vector<std::pair<Device, std::vector<Block>>> blocks;
  for (uint32_t s = 0; s < g.slots.size(); ++s) {
    const Slot& slot = g.slots[s];
    if (slot.group != s || slot.node == kNone || slot.pinned || !made[s] || slot.layout->bytes() == 0) continue;
    const Device device = slot.layout->device;
    auto it = std::find_if(blocks.begin(), blocks.end(), [&](const auto& b) { return b.first == device; });
    if (it == blocks.end()) it = blocks.insert(it, {device, {}});
    const uint32_t rest = branches && device.backend != Backend::cpu ? kRest : 0;
    const uint32_t last = std::min(slot.last + rest, uint32_t(plan.steps.size() - 1));
    it->second.push_back({s, slot.first, last, aligned(slot.layout->bytes(), device)});
  }
  for (auto& [device, of_device] : blocks) {
    if (of_device.size() > kMostPacked) continue;
    const auto [bytes, live] = pack(of_device, plan.steps.size());
    for (const Block& b : of_device) plan.slices[b.group] = {uint32_t(plan.arenas.size()), b.offset};
    plan.arenas.push_back({device, bytes, live});
  }
}
}  // namespace

void assign_buffers(Graph& g, Plan& plan, uint32_t passes) {
  find_lifetimes(g, plan);
  choose_in_place(g, plan, passes & kInPlace);
  choose_slices(g, plan, passes & kArena, passes & kBranches);
}

}  // namespace tg::detail
