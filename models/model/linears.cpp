#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/config/glob.h>
#include <tapegrad/models/model/forward.h>

#include <algorithm>

namespace tg {
namespace {
// Numbers become asterisks, so all blocks have equal names.
std::string pattern_of(std::string_view name) {
  std::string s;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    s += (begin ? "." : "") + std::string(number ? "*" : part);
    begin = end + 1;
  }
  return s;
}
std::string modules_of(const std::vector<NamedLinear>& all) {
  std::vector<std::pair<std::string, int>> patterns;  // each with its count
  for (const auto& l : all) {
    const std::string pattern = pattern_of(l.name);
    const auto at = std::find_if(patterns.begin(), patterns.end(), [&](auto& p) { return p.first == pattern; });
    if (at != patterns.end())
      ++at->second;
    else
      patterns.push_back({pattern, 1});
  }
  std::string s;
  for (const auto& [pattern, n] : patterns) s += fmt::format("{}{} ({})", s.empty() ? "" : ", ", pattern, n);
  return fmt::format("The modules are {}. A tied head is not a module.", s);
}
}  // namespace

std::vector<NamedLinear> Linears::matching(std::string_view op, std::span<const std::string> patterns) const {
  const std::string there = modules_of(list);
  TG_CHECK(!patterns.empty(), value, "[{}] there are no targets. At least one pattern must name modules. {}", op,
           there);
  for (const std::string& pattern : patterns)
    TG_CHECK(std::any_of(list.begin(), list.end(), [&](auto& l) { return glob_matches(pattern, l.name); }), value,
             "[{}] the target '{}' matches no module. Each target must match at least one; * stands for any "
             "characters. {}",
             op, pattern, there);
  std::vector<NamedLinear> r;
  for (const NamedLinear& l : list)
    if (std::any_of(patterns.begin(), patterns.end(), [&](auto& pattern) { return glob_matches(pattern, l.name); }))
      r.push_back(l);
  return r;
}

std::vector<std::string> replace_linears(const Linears& model, const std::vector<std::string>& patterns,
                                         LinearKind kind) {
  const std::vector<NamedLinear> layers = model.matching("replace_linears", patterns);
  for (const NamedLinear& l : layers)
    TG_CHECK(!l.layer->fragmented || kind == LinearKind::plain, value,
             "[replace_linears] '{}' is a FragmentedLinear, which has no 8-bit products. Leave it out.", l.name);
  for (const NamedLinear& l : layers)
    TG_CHECK(!l.layer->prepared(), state,
             "[replace_linears] '{}' was prepared for evaluation: its weight is gone. Load the model again.", l.name);
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
