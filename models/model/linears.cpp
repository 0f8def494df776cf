#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/model/forward.h>

#include <algorithm>

namespace tg {
namespace {
std::string modules_of(const std::vector<NamedLinear>& all, bool parts, std::string_view meant = "") {
  std::vector<std::pair<std::string, int>> patterns;  // pattern, count
  const auto add = [&](std::string_view name) {
    const std::string pattern = detail::block_pattern(name);
    const auto at = std::ranges::find_if(patterns, [&](auto& p) { return p.first == pattern; });
    if (at != patterns.end())
      ++at->second;
    else
      patterns.push_back({pattern, 1});
  };
  for (const auto& l : all) {
    add(l.name);
    for (const auto& p : l.parts)
      if (parts) add(p.name);
  }
  std::string s;
  for (const auto& [pattern, n] : patterns) s += fmt::format("{}{} ({})", s.empty() ? "" : ", ", pattern, n);
  std::vector<std::string_view> names;
  for (const auto& [pattern, n] : patterns) names.push_back(pattern);
  return fmt::format("The modules are {}. A tied head is not a module.{}", s, detail::did_you_mean(meant, names));
}
}  // namespace

std::vector<NamedLinear> Linears::matching(std::string_view op, std::span<const std::string> patterns,
                                           bool parts) const {
  TG_CHECK(!patterns.empty(), value, "[{}] there are no targets. At least one pattern must name modules. {}", op,
           modules_of(list, parts));
  std::vector<bool> used(patterns.size());
  std::vector<NamedLinear> r;
  for (const NamedLinear& l : list) {
    NamedLinear found{l.name, l.layer};
    std::vector<bool> chosen(l.parts.size());
    bool whole = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const bool all = detail::glob_matches(patterns[i], l.name);
      whole |= all, used[i] = used[i] || all;
      for (size_t p = 0; parts && !all && p < l.parts.size(); ++p)
        if (detail::glob_matches(patterns[i], l.parts[p].name)) chosen[p] = used[i] = true;
    }
    for (size_t p = 0; p < l.parts.size(); ++p)
      if (chosen[p]) found.parts.push_back(l.parts[p]);
    TG_CHECK(!whole || found.parts.empty(), value,
             "[{}] the targets name '{}' and its part '{}'. Rows can have one adapter. Name the layer or its parts.",
             op, l.name, found.parts.front().name);
    if (whole || !found.parts.empty()) r.push_back(std::move(found));
  }
  for (size_t i = 0; i < patterns.size(); ++i)
    TG_CHECK(used[i], value,
             "[{}] the target '{}' matches no module. Each target must match at least one; * stands for any "
             "characters. {}",
             op, patterns[i], modules_of(list, parts, patterns[i]));
  return r;
}

std::vector<std::string> replace_linears(const Linears& model, const std::vector<std::string>& patterns,
                                         LinearKind kind) {
  const std::vector<NamedLinear> layers = model.matching("replace_linears", patterns);
  for (const NamedLinear& l : layers) {
    TG_CHECK(!l.layer->fragmented || kind == LinearKind::plain, value,
             "[replace_linears] '{}' is a FragmentedLinear, which has no 8-bit products. Leave it out.", l.name);
    TG_CHECK(
        !l.layer->blocks || kind == LinearKind::plain, value,
        "[replace_linears] '{}' is in blocks, which 8-bit products would quantize again. Leave it out, or load the "
        "model dequantized.",
        l.name);
    TG_CHECK(!l.layer->prepared(), state,
             "[replace_linears] '{}' was prepared for evaluation: its weight is gone. Load the model again.", l.name);
  }
  std::vector<std::string> names;
  for (const NamedLinear& l : layers) {
    l.layer->kind = kind;
    names.push_back(l.name);
  }
  structure_changed();
  return names;
}
void prepare_for_eval(const Linears& model, const Params& params) {
  size_t layers = 0;
  for (const NamedLinear& l : model.list) {
    TG_CHECK(!l.layer->prepared(), state, "[prepare_for_eval] '{}' is prepared already. Prepare a model once.", l.name);
    layers += l.layer->kind != LinearKind::plain;
  }
  TG_CHECK(
      layers > 0, state,
      "[prepare_for_eval] all {} layers are plain: none has quantized weights to keep. Call replace_linears() first.",
      model.list.size());
  for (const NamedLinear& l : model.list) {
    if (l.layer->kind == LinearKind::plain) continue;
    const Tensor weight = l.layer->weight;
    l.layer->prepare_for_eval();
    params.drop(weight);
  }
}
}  // namespace tg
