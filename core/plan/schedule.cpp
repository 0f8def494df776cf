// Order of steps: emission, or greedily the ready step that adds the fewest live bytes. A communicating step runs
// as soon as all earlier ones ran (other ranks wait), a large reduction as soon as its inputs exist.
#include <tapegrad/core/plan/plan.h>

#include <algorithm>
#include <set>

namespace tg::detail {
namespace {
// Candidates: the kWidth ready steps emitted first and the kWidth ready last; no limit would be quadratic.
constexpr size_t kWidth = 32;
constexpr int64_t kLargeRead = 1 << 20;

class Scheduler {
 public:
  Scheduler(const Graph& g, const std::vector<Step>& steps)
      : reads_(steps.size()), makes_(steps.size()), readers_(steps.size()), waits_(steps.size()) {
    std::vector<uint32_t> step_of(g.nodes.size());
    base_.resize(g.slots.size());
    for (uint32_t s = 0; s < base_.size(); ++s) base_[s] = s;
    bytes_.resize(base_.size());
    left_.resize(base_.size());
    uint32_t after_message = 0;  // first step after the last message
    message_.resize(steps.size());
    reduces_.resize(steps.size());
    for (uint32_t t = 0; t < steps.size(); ++t) {
      for (const uint32_t n : steps[t].nodes) step_of[n] = t;
      add_results(g, steps[t], t);
      for (const uint32_t n : steps[t].nodes)
        for (const uint32_t s : g.inputs(n)) add_read(g, s, t, step_of);
      if (steps[t].duplicate_of != kNone) add_wait(step_of[steps[t].duplicate_of], t);
      for (const uint32_t base : reads_[t]) ++left_[base];
      int64_t read = 0;
      for (const uint32_t base : reads_[t]) read += bytes_[base];
      reduces_[t] = read >= kLargeRead && makes_[t] > 0 && makes_[t] <= read / 1024;
      message_[t] = g.nodes[steps[t].nodes[0]]->op->traits().communicates;
      if (!message_[t]) continue;
      for (uint32_t before = after_message ? after_message - 1 : 0; before < t; ++before) add_wait(before, t);
      after_message = t + 1;
    }
    for (uint32_t s = 0; s < base_.size(); ++s)
      if (g.slots[s].pinned || g.slots[s].node == kNone) left_[base_[s]] = kNone;
  }
  std::vector<uint32_t> order(bool greedy) {
    for (uint32_t t = 0; t < waits_.size(); ++t)
      if (waits_[t] == 0) enable(t);
    std::vector<uint32_t> r;
    while (!ready_.empty()) {
      const uint32_t t = best(greedy);
      ready_.erase(t);
      std::erase(recent_, t);
      for (const uint32_t base : reads_[t])
        if (left_[base] != kNone) --left_[base];
      for (const uint32_t next : readers_[t])
        if (--waits_[next] == 0) enable(next);
      r.push_back(t);
    }
    return r;
  }

 private:
  // Views and duplicates take no bytes.
  void add_results(const Graph& g, const Step& step, uint32_t t) {
    if (step.duplicate_of != kNone) {
      for (size_t i = 0; i < g.nodes[step.nodes[0]]->out.size(); ++i)
        base_[g.output(step.nodes[0], i)] = base_[g.output(step.duplicate_of, i)];
      return;
    }
    for (const Operation& o : operations(g, step))
      for (size_t i = 0; i < o.out.size(); ++i) {
        if (o.out[i] == kNone) continue;
        if (const int view_of = o.layouts[i]->aliases_input; view_of >= 0) {
          base_[o.out[i]] = base_[o.in[size_t(view_of)]];
        } else {
          bytes_[o.out[i]] = int64_t(o.layouts[i]->bytes());
          makes_[t] += bytes_[o.out[i]];
        }
      }
  }
  void add_read(const Graph& g, uint32_t slot, uint32_t t, const std::vector<uint32_t>& step_of) {
    const uint32_t node = g.slots[slot].node;
    if (node != kNone && step_of[node] == t) return;
    if (!std::ranges::count(reads_[t], base_[slot])) reads_[t].push_back(base_[slot]);
    if (node != kNone) add_wait(step_of[node], t);
  }
  void add_wait(uint32_t maker, uint32_t t) {
    if (!readers_[maker].empty() && readers_[maker].back() == t) return;
    readers_[maker].push_back(t);
    ++waits_[t];
  }
  void enable(uint32_t t) {
    ready_.insert(t);
    recent_.push_back(t);
    if (recent_.size() > kWidth) recent_.erase(recent_.begin());
  }
  int64_t growth(uint32_t t) const {
    int64_t n = makes_[t];
    for (const uint32_t base : reads_[t])
      if (left_[base] == 1) n -= bytes_[base];
    return n;
  }
  uint32_t best(bool greedy) const {
    const auto early = std::ranges::find_if(recent_, [&](uint32_t t) { return reduces_[t]; });
    if (early != recent_.end()) return *early;
    uint32_t found = *ready_.begin();
    if (!greedy || message_[found]) return found;  // all earlier steps ran
    int64_t least = INT64_MAX;
    const auto consider = [&](uint32_t t) {
      const int64_t n = growth(t);
      if (n < least || (n == least && t < found)) least = n, found = t;
    };
    size_t seen = 0;
    for (auto it = ready_.begin(); it != ready_.end() && seen < kWidth; ++it, ++seen) consider(*it);
    for (const uint32_t t : recent_) consider(t);
    return found;
  }

  std::vector<uint32_t> base_;                  // indexed by slot: slot that owns the memory
  std::vector<int64_t> bytes_;                  // indexed by base: bytes that the graph allocates
  std::vector<uint32_t> left_;                  // indexed by base: future readers; kNone: never freed
  std::vector<std::vector<uint32_t>> reads_;    // indexed by step: bases read
  std::vector<int64_t> makes_;                  // indexed by step: bytes allocated
  std::vector<std::vector<uint32_t>> readers_;  // indexed by step: dependent steps
  std::vector<uint32_t> waits_;                 // indexed by step: dependencies
  std::vector<bool> message_, reduces_;         // indexed by step
  std::set<uint32_t> ready_;
  std::vector<uint32_t> recent_;
};
}  // namespace

Orders orders_of(const Graph& g, const std::vector<Step>& steps) {
  Scheduler emitted(g, steps), compact = emitted;
  return {emitted.order(false), compact.order(true)};
}
}  // namespace tg::detail
