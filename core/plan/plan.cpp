#include <tapegrad/core/plan/plan.h>

#include <algorithm>

namespace tg {
namespace {
std::vector<const Rule*>& rules() {
  static std::vector<const Rule*> r;
  return r;
}
}  // namespace
bool register_rules(std::span<const Rule> list) {
  for (const Rule& r : list) rules().push_back(&r);
  return true;
}

namespace detail {
namespace {
// A match's nodes in pattern order.
struct Match {
  std::vector<uint32_t> nodes;
  std::vector<Port> in;
};

class Finder {
 public:
  Finder(const Graph& g, const std::vector<uint8_t>& busy) : g_(g), busy_(busy), readers_(g.slots.size()) {
    for (uint32_t n = 0; n < g.nodes.size(); ++n)
      for (const uint32_t s : g.inputs(n)) readers_[s].push_back(n);
  }
  std::vector<Rewrite> all() {
    std::vector<Rewrite> found;
    // A pattern's root is its last node: otherwise a smaller match could take its nodes.
    for (auto n = uint32_t(g_.nodes.size()); n-- > 0;)
      for (const Rule* r : rules())
        if (std::optional<Rewrite> w = apply(*r, n)) {
          for (const uint32_t k : w->nodes) busy_[k] = 1;
          found.push_back(std::move(*w));
          break;
        }
    return found;
  }

 private:
  bool matches(const Pattern& p, uint32_t n, Match& m) const {
    const Node& node = *g_.nodes[n];
    if (busy_[n] || node.op->type() != p.op || has_failed(node)) return false;
    if (node.in.size() < p.in.size() || (node.in.size() > p.in.size() && !p.more)) return false;
    m.nodes.push_back(n);
    if (in_order(p, n, m, false)) return true;
    return p.either_order && in_order(p, n, m, true);
  }
  bool in_order(const Pattern& p, uint32_t n, Match& m, bool swapped) const {
    const Match before = m;
    const auto in = g_.inputs(n);
    for (uint32_t i = 0; i < in.size(); ++i) {
      const uint32_t at = swapped ? 1 - i : i;
      const Slot& s = g_.slots[in[at]];
      if (i >= p.in.size() || !p.in[i].op) {
        m.in.push_back({n, at});
      } else if (s.node == kNone || in[at] != g_.output(s.node, 0) || !matches(p.in[i], s.node, m)) {
        m = before;
        return false;
      }
    }
    return true;
  }
  // Reads of values that the new op lacks are in the match, reads of its results in or after it.
  bool closed(const Rule& r, const Match& m) const {
    const uint32_t root = m.nodes[0];
    for (uint32_t k = 0; k < m.nodes.size(); ++k)
      for (uint32_t i = 0; i < g_.nodes[m.nodes[k]]->out.size(); ++i) {
        const uint32_t slot = g_.output(m.nodes[k], i);
        const bool made = std::ranges::any_of(r.results, [&](auto& x) { return x.op == k && x.out == i; });
        if (!made && g_.slots[slot].pinned) return false;
        for (const Port& x : m.in)
          if (g_.inputs(x.node)[x.index] == slot) return false;
        for (const uint32_t reader : readers_[slot])
          if (!std::ranges::count(m.nodes, reader) && (!made || reader < root)) return false;
      }
    return true;
  }
  std::optional<Rewrite> apply(const Rule& r, uint32_t root) const {
    Match m;
    if (!matches(r.pattern, root, m)) return {};
    Rewrite w{m.nodes, {.rule = &r, .order = {}, .in = {}, .out = {}, .layouts = {}}};
    std::ranges::sort(w.nodes);
    if (std::ranges::adjacent_find(w.nodes) != w.nodes.end() || !closed(r, m)) return {};
    const auto place = [&](uint32_t n) { return uint32_t(std::ranges::find(w.nodes, n) - w.nodes.begin()); };
    for (const uint32_t n : m.nodes) w.replacement.order.push_back(place(n));
    for (const Port& in : m.in) w.replacement.in.push_back({place(in.node), in.index});
    for (const Rule::Result& x : r.results) w.replacement.out.push_back({place(m.nodes[x.op]), x.out});
    const OpPtr op = w.replacement.op([&](size_t k) -> const Node& { return *g_.nodes[w.nodes[k]]; });
    if (!op || !op->supports(g_.nodes[root]->out[0].layout.device.backend)) return {};
    std::vector<Tensor> in;
    for (const Port& x : m.in) in.emplace_back(make_ref<Value>(g_.nodes[x.node]->in[x.index].value->layout));
    for (const Layout& l : op->infer(in)) w.replacement.layouts.push_back(l);
    return w;
  }

  const Graph& g_;
  std::vector<uint8_t> busy_;
  std::vector<std::vector<uint32_t>> readers_;  // indexed by slot
};
}  // namespace

std::vector<Rewrite> find_rewrites(const Graph& g, const std::vector<uint8_t>& busy) { return Finder(g, busy).all(); }
}  // namespace detail
}  // namespace tg
