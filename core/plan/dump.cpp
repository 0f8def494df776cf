// Plans as JSON files in the folder of TG_DUMP_PLANS, one per plan.
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
Json json(const Graph& g, const Plan& p) {
  Json nodes = Json::array(), leaves = Json::array(), steps = Json::array(), arenas = Json::array();
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
    Json made{{"op", node.op->name()}, {"scope", node.scope->path()}, {"in", in}, {"out", out}};
    if (node.is_recomputation) made["recomputed"] = true;
    nodes.push_back(std::move(made));
  }
  for (uint32_t s = 0; s < g.slots.size(); ++s)
    if (g.slots[s].node == kNone)
      leaves.push_back(
          {{"value", s}, {"layout", fmt::format("{}", *g.slots[s].layout)}, {"label", name_of_leaf(g, s)}});
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
  return {{"leaves", leaves}, {"nodes", nodes}, {"steps", steps}, {"arenas", arenas}};
}
}  // namespace

const char* folder_of_dumps() {
  const char* folder = std::getenv("TG_DUMP_PLANS");
  if (!folder || !*folder) return nullptr;
  detail::make_folder(folder);
  return folder;
}
void dump(const Graph& g, const Plan& p) {
  const char* folder = folder_of_dumps();
  if (!folder) return;
  static std::atomic<int> number{0};
  detail::write_file_atomically(fmt::format("{}/plan{:04}.json", folder, number++),
                                detail::text_of(json(g, p), 1) + "\n");
}

}  // namespace tg::detail
