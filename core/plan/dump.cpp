// What a plan looks like, for people (Graphviz) and programs (JSON): written where TG_DUMP_PLANS says, once per plan.
#include <fmt/ranges.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/plan/plan.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace tg::detail {
namespace {

std::string name_of_leaf(const Graph& g, uint32_t slot) {
  for (uint32_t n = 0; n < g.nodes.size(); ++n) {
    const auto in = g.inputs(n);
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i] == slot && g.nodes[n]->in[i].label) return *g.nodes[n]->in[i].label;
  }
  return {};
}
std::string source(const Graph& g, uint32_t slot) {
  const uint32_t n = g.slots[slot].node;
  return n == kNone ? fmt::format("leaf{}", slot) : fmt::format("node{}", n);
}
std::string node_line(const Graph& g, uint32_t n, std::string_view more = {}) {
  const Node& node = *g.nodes[n];
  std::string text = fmt::format("{} {}{}", n, node.op->name(), node.is_recomputation ? ", computed again" : "");
  for (const Out& o : node.out) text += fmt::format("\\n{}", o.layout);
  if (node.scope->parent) text += "\\n" + node.scope->path();
  return fmt::format("  node{} [label=\"{}{}\"];\n", n, text, more);
}
std::string edges(const Graph& g) {
  std::string r;
  for (uint32_t n = 0; n < g.nodes.size(); ++n)
    for (const uint32_t s : g.inputs(n)) r += fmt::format("  {} -> node{};\n", source(g, s), n);
  for (uint32_t s = 0; s < g.slots.size(); ++s)
    if (g.slots[s].node == kNone)
      r += fmt::format("  leaf{} [shape=ellipse,label={}];\n", s,
                       text_of(fmt::format("{} {}", name_of_leaf(g, s), *g.slots[s].layout)));
  return r;
}
std::string dot(std::string_view body) {
  return fmt::format("digraph plan {{\n  node [shape=box,fontname=monospace];\n{}}}\n", body);
}
std::string before(const Graph& g) {
  std::string r;
  for (uint32_t n = 0; n < g.nodes.size(); ++n) r += node_line(g, n);
  return dot(r + edges(g));
}
std::string after(const Graph& g, const Plan& p) {
  std::string r;
  for (size_t t = 0; t < p.steps.size(); ++t) {
    const Step& s = p.steps[t];
    if (s.nodes.size() > 1)
      r += fmt::format("  subgraph cluster{} {{ label=\"step {}: {}\";\n", t, t,
                       s.replacement ? s.replacement->rule->name : "a chain");
    for (const uint32_t n : s.nodes) {
      std::string more = fmt::format("\\nstep {}", t);
      if (s.duplicate_of != kNone) more += fmt::format(", as {}", s.duplicate_of);
      if (s.replacement) more += fmt::format(", by the rule {}", s.replacement->rule->name);
      if (const BufferSlice& place = p.slices[g.output(n, 0)]; place.arena != BufferSlice::kNone)
        more += fmt::format("\\nat {} of arena {}", place.offset, place.arena);
      r += node_line(g, n, more);
    }
    if (s.nodes.size() > 1) r += "  }\n";
  }
  return dot(r + edges(g));
}
Json json(const Graph& g, const Plan& p) {
  Json nodes = Json::array(), steps = Json::array(), arenas = Json::array();
  for (uint32_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = *g.nodes[n];
    Json in = Json::array(), out = Json::array();
    for (const uint32_t s : g.inputs(n)) in.push_back(s);
    for (size_t i = 0; i < node.out.size(); ++i) {
      const uint32_t s = g.output(n, i);
      const BufferSlice& place = p.slices[s];
      Json o{{"value", s}, {"layout", fmt::format("{}", node.out[i].layout)}, {"kept", g.slots[s].pinned}};
      if (place.arena != BufferSlice::kNone) o["arena"] = place.arena, o["offset"] = place.offset;
      out.push_back(std::move(o));
    }
    nodes.push_back({{"op", node.op->name()}, {"scope", node.scope->path()}, {"in", in}, {"out", out}});
  }
  for (const Step& s : p.steps) {
    Json donors = Json::array();
    for (const Donors& d : s.donors) donors.push_back(std::vector<int32_t>(d.begin(), d.end()));
    Json step{{"nodes", s.nodes}, {"in_place", donors}};
    if (s.duplicate_of != kNone) step["as"] = s.duplicate_of;
    if (s.replacement)
      step["rule"] = s.replacement->rule->name;
    else if (s.nodes.size() > 1)
      step["temporaries"] = std::count_if(s.chain.buffers.begin(), s.chain.buffers.end(),
                                          [](const auto& b) { return b.kind == ChainPlan::Buffer::Kind::temporary; });
    steps.push_back(std::move(step));
  }
  for (const Plan::Arena& a : p.arenas)
    arenas.push_back({{"device", to_string(a.device)}, {"bytes", a.bytes}, {"live", a.live}});
  return {{"nodes", nodes}, {"steps", steps}, {"arenas", arenas}};
}
}  // namespace

const char* folder_of_dumps() {
  const char* folder = std::getenv("TG_DUMP_PLANS");
  if (!folder || !*folder) return nullptr;
  make_folder(folder);
  return folder;
}
void dump(const Graph& g, const Plan& p) {
  const char* folder = folder_of_dumps();
  if (!folder) return;
  static std::atomic<int> number{0};
  const std::string stem = fmt::format("{}/plan{:04}", folder, number++);
  write_file_atomically(stem + ".before.dot", before(g));
  write_file_atomically(stem + ".after.dot", after(g, p));
  write_file_atomically(stem + ".json", text_of(json(g, p), 1) + "\n");
}

}  // namespace tg::detail
