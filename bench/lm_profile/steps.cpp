#include <tapegrad/core/check.h>

#include "lm_profile/steps.h"

#include <algorithm>

namespace tg::bench {
namespace {
constexpr const char* kStep = "profiled_step";
constexpr const char* kPhases[] = {"forward_pass", "loss_computation", "backward_pass", "optimizer_step"};

// A scope's path with "*" for numbers: "gpt.h.*.attn", "layer_*.attention_sublayer".
std::string pattern_of(const Scope* s) {
  if (!s || !s->parent) return "";
  const bool number = std::ranges::all_of(s->name, [](char c) { return c >= '0' && c <= '9'; });
  const std::string_view name = number ? "*" : s->name.starts_with("layer_") ? "layer_*" : std::string_view(s->name);
  const std::string before = pattern_of(s->parent);
  return fmt::format("{}{}{}", before, before.empty() ? "" : ".", name);
}
struct Place {
  std::string_view scope;  // Gpt: path; DocumentLm: name
  const char* range;       // the document's name, or null
  LmPart part;
};
constexpr Place named(const char* name, LmPart part) { return {name, name, part}; }
constexpr Place kPlaces[] = {
    {"gpt.wte", "token_embeddings", LmPart::embedding},
    {"gpt.h.*", "layer_*", LmPart::other},
    {"gpt.h.*.ln_1", nullptr, LmPart::attention_rest},
    {"gpt.h.*.attn", "attention_sublayer", LmPart::attention},
    {"gpt.h.*.attn.qkv", "attention projections", LmPart::projections},
    {"gpt.h.*.attn.proj", "output projection", LmPart::projections},
    {"gpt.h.*.ln_2", nullptr, LmPart::ffn_rest},
    {"gpt.h.*.mlp", "ffn_sublayer", LmPart::ffn_rest},
    {"gpt.h.*.mlp.fc", nullptr, LmPart::ffn_products},
    {"gpt.h.*.mlp.proj", nullptr, LmPart::ffn_products},
    {"gpt.ln_f", "final_norm", LmPart::final_norm},
    {"gpt.lm_head", "lm_head", LmPart::head},
    named("token_embeddings", LmPart::embedding),
    named("layer_*", LmPart::other),
    named("attention_sublayer", LmPart::attention_rest),
    named("attention projections", LmPart::projections),
    named("rope encoding", LmPart::rope),
    named("causal mask construction", LmPart::attention),
    named("scaled_dot_product_attention", LmPart::attention),
    named("annotated_scaled_dot_product_attention", LmPart::attention),
    named("computing attention scores", LmPart::attention),
    named("computing softmax", LmPart::attention),
    named("final matmul", LmPart::attention),
    named("output projection", LmPart::projections),
    named("ffn_sublayer", LmPart::ffn_rest),
    named("final_norm", LmPart::final_norm),
    named("lm_head", LmPart::head),
    {"adamw", nullptr, LmPart::optimizer},
};
const Place* place_of(const Scope* s) {
  std::string pattern = pattern_of(s);
  if (!pattern.starts_with("gpt.")) pattern.erase(0, pattern.rfind('.') + 1);
  const auto at = std::ranges::find(kPlaces, pattern, &Place::scope);
  return at == std::end(kPlaces) ? nullptr : at;
}
// Layer number of a scope ("gpt.h.3.mlp", "layer_3.ffn_sublayer"), or -1.
int64_t layer_of(const Scope* s) {
  for (; s && s->parent; s = s->parent) {
    if (s->name.starts_with("layer_")) return std::stoll(s->name.substr(6));
    if (s->parent->name == "h" && pattern_of(s) == "gpt.h.*") return std::stoll(s->name);
  }
  return -1;
}
bool within(const Scope* path, std::string_view name) {
  for (; path && path->parent; path = path->parent)
    if (path->name == name) return true;
  return false;
}
std::string_view kept(const std::string& name) { return *detail::intern(name); }  // lives as long as the process

// Document's name of a range, or empty.
std::string_view range_name(const Profile& p, const Profile::Range& r) {
  if (r.kind == RangeKind::range) {
    if (r.name == "warmup" || r.name == kStep) return r.name;
    return std::ranges::find(kPhases, r.name) == std::end(kPhases) ? std::string_view() : r.name;
  }
  const Place* place = place_of(r.layer);
  if (r.kind == RangeKind::layer) {
    if (!place || !place->range) return {};
    return place->range == std::string_view("layer_*") ? kept(fmt::format("layer_{}", layer_of(r.layer)))
                                                       : std::string_view(place->range);
  }
  // An op of Gpt in a layer's range (gradients are in none).
  const bool inside = r.parent != Profile::kNone && p.ranges[r.parent].kind == RangeKind::layer;
  if (!inside || pattern_of(r.layer) != "gpt.h.*.attn") return {};
  return r.name == "self_attention" ? "scaled_dot_product_attention" : r.name == "rope" ? "rope encoding" : "";
}
double seconds(int64_t begin, int64_t end) { return 1e-9 * double(end - begin); }
}  // namespace

Profile document_ranges(const Profile& p) {
  Profile r = p;
  r.ranges.clear();
  std::map<uint32_t, size_t> rotated;  // range of a layer -> its q and k rotation
  std::vector<uint32_t> place(p.ranges.size(), Profile::kNone);
  for (size_t i = 0; i < p.ranges.size(); ++i) {
    Profile::Range range = p.ranges[i];
    const std::string_view name = range_name(p, range);
    const uint32_t outer = range.parent == Profile::kNone ? Profile::kNone : place[range.parent];
    place[i] = outer;  // children of a dropped range move to its parent
    if (name.empty()) continue;
    if (range.kind == RangeKind::op) {
      if (range.name == "rope") {
        const auto [at, first] = rotated.emplace(range.parent, r.ranges.size());
        if (!first) {
          r.ranges[at->second].end = range.end;
          continue;
        }
      }
      range.kind = RangeKind::layer;
    }
    range.name = name;
    range.parent = outer;
    place[i] = uint32_t(r.ranges.size());
    r.ranges.push_back(std::move(range));
  }
  const auto moved = [&](auto& records) {
    for (auto& x : records)
      if (x.range != Profile::kNone) x.range = place[x.range];
  };
  moved(r.kernels), moved(r.copies), moved(r.calls);
  return r;
}

bool is_product(const Profile::Kernel& k) { return k.op.starts_with("linear") || k.op.starts_with("matmul"); }
LmPart part_of(const Profile::Kernel& k) {
  if (k.op.starts_with("cross_entropy") || within(k.path, "loss_computation")) return LmPart::loss;
  if (k.op.starts_with("adamw") || within(k.path, "optimizer_step")) return LmPart::optimizer;
  const Place* place = place_of(k.layer);
  if (!place) return LmPart::other;
  if (place->part == LmPart::attention && k.op == "rope") return LmPart::rope;
  if (place->part == LmPart::ffn_rest && is_product(k)) return LmPart::ffn_products;
  return place->part;
}

double LmStep::phase_seconds(const std::string& name) const {
  const auto at = phases.find(name);
  return at == phases.end() ? 0 : at->second.seconds;
}

namespace {
void add(LmPhase& to, const Profile::Kernel& k) {
  const double t = seconds(k.begin, k.end);
  to.kernels += t;
  ++to.launches;
  if (is_product(k)) to.products += t;
  to.parts[size_t(part_of(k))] += t;
}
void add_at(std::vector<double>& to, int64_t i, double x) {
  if (i < 0) return;
  if (size_t(i) >= to.size()) to.resize(size_t(i) + 1);
  to[size_t(i)] += x;
}
void take_ranges(const Profile& p, const Profile::Range& step, LmStep& s) {
  std::map<int64_t, size_t> seen;
  double outermost = 0;
  for (const Profile::Range& r : document_ranges(p).ranges) {
    const double t = seconds(r.begin, r.end);
    if (r.name == "attention_sublayer") s.ranges_attention += t;
    if (r.name == "ffn_sublayer") s.ranges_ffn += t;
    const bool layer = r.name.starts_with("layer_"), in_step = r.begin >= step.begin && r.end <= step.end;
    if (in_step && (layer || r.name == "token_embeddings" || r.name == "final_norm" || r.name == "lm_head"))
      outermost += t;
    if (!layer) continue;
    const int64_t i = layer_of(r.layer);
    if (seen[i]++ == 0) add_at(s.first_host_layers, i, t);
    if (in_step) add_at(s.host_layers, i, t);
  }
  s.host_layers_cover = outermost / s.phase_seconds("forward_pass");
}
}  // namespace

LmStep profiled_step(const Profile& p) {
  LmStep s;
  const auto at = std::ranges::find_if(
      p.ranges, [](const Profile::Range& r) { return r.kind == RangeKind::range && r.name == kStep; });
  TG_CHECK(at != p.ranges.end(), value, "[bench_lm_profile] the profile has no range '{}'. Profile LmModel::run().",
           kStep);
  const Profile::Range& step = *at;
  s.seconds = seconds(step.begin, step.end);
  for (const Profile::Range& r : p.ranges)
    for (const char* name : kPhases)
      if (r.kind == RangeKind::range && r.name == name) s.phases[name].seconds += seconds(r.begin, r.end);
  double in_layers = 0;
  for (const Profile::Kernel& k : p.kernels) {
    if (!within(k.path, kStep)) continue;
    add(s.all, k);
    for (const char* name : kPhases)
      if (within(k.path, name)) add(s.phases[name], k);
    if (!within(k.path, "forward_pass")) continue;
    add_at(s.layers, layer_of(k.layer), seconds(k.begin, k.end));
    if (const Place* place = place_of(k.layer); place && (layer_of(k.layer) >= 0 || place->range))
      in_layers += seconds(k.begin, k.end);
  }
  for (const Profile::Memory& m : p.memory)
    if (m.bytes > 0 && m.time >= step.begin && m.time <= step.end) s.allocated += double(m.bytes);
  double sum = 0;
  for (const auto& [name, phase] : s.phases) sum += phase.seconds;
  s.phases_cover = sum / s.seconds;
  const double forward = s.phases["forward_pass"].kernels;
  s.layers_cover = forward > 0 ? in_layers / forward : 0;
  take_ranges(p, step, s);
  return s;
}

LmCopies copies_of(const Profile& p, Profile::Copy::Kind kind) {
  LmCopies c;
  for (const Profile::Copy& copy : p.copies)
    if (copy.kind == kind) ++c.count, c.bytes += double(copy.bytes), c.seconds += seconds(copy.begin, copy.end);
  return c;
}

}  // namespace tg::bench
