#include <tapegrad/core/check.h>
#include <tapegrad/models/config/glob.h>
#include <tapegrad/models/model/lora.h>

#include <algorithm>

namespace tg {

namespace {
// The name with an asterisk for each number in it: equal in all blocks.
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
  return fmt::format("The modules are {}. A head that is the token table is none.", s);
}
bool is_target(const LoraConfig& c, std::string_view name) {
  return std::any_of(c.targets.begin(), c.targets.end(), [&](auto& pattern) { return glob_matches(pattern, name); });
}
}  // namespace

std::vector<NamedLinear> lora_targets(const Linears& model, const LoraConfig& c) {
  const std::vector<NamedLinear>& all = model.list;
  const std::string there = modules_of(all);
  TG_CHECK(!c.targets.empty(), value, "[lora] there are no targets. At least one pattern must name modules. {}", there);
  for (const std::string& pattern : c.targets)
    TG_CHECK(std::any_of(all.begin(), all.end(), [&](auto& l) { return glob_matches(pattern, l.name); }), value,
             "[lora] the target '{}' matches no module. Each target must match at least one; * stands for any "
             "characters. {}",
             pattern, there);
  std::vector<NamedLinear> r;
  for (const auto& l : all) {
    TG_CHECK(!l.layer->adapter, state,
             "[lora] '{}' has an adapter already. A model has one set of them. Load the model again, or go on with the "
             "set it has.",
             l.name);
    if (!is_target(c, l.name)) continue;
    try {
      c.options().validate(l.layer->weight.size(1), l.layer->weight.size(0));
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}\n    for module '{}'", e.what(), l.name), e.scoped());
    }
    r.push_back(l);
  }
  return r;
}

Lora apply_lora(const Linears& model, const Params& base, const LoraConfig& c) {
  const auto layers = lora_targets(model, c);
  const std::vector<Parameter> all = base.all();
  for (const auto& l : layers)
    TG_CHECK(
        std::any_of(all.begin(), all.end(), [&](auto& p) { return p.tensor.id() == l.layer->weight.id(); }), value,
        "[lora] the weight of '{}' is not among the {} parameters given. All of the model's are to be frozen. Pass "
        "the Params that the model was made from.",
        l.name, all.size());
  const DType dtype = base.dtype() == DType::f64 ? DType::f64 : DType::f32;  // an optimiser needs more than 16 bits
  Lora r(c, Params(base.device(), c.seed, dtype));
  for (const auto& l : layers)
    r.modules_.push_back({l.name, nn::LoraLinear(*l.layer, r.params_.at(l.name), c.options())});
  for (Parameter p : all) p.tensor.requires_grad_(false);
  for (size_t i = 0; i < layers.size(); ++i) *layers[i].layer = r.modules_[i].layer.linear();
  return r;
}

bool Lora::merged() const { return modules_.front().layer.merged(); }
void Lora::merge() {
  for (size_t i = 0; i < modules_.size(); ++i) {
    try {
      modules_[i].layer.merge();
    } catch (...) {
      while (i > 0) modules_[--i].layer.unmerge();
      throw;
    }
  }
}
void Lora::unmerge() {
  for (const Module& m : modules_)  // before any of them is
    TG_CHECK(m.layer.merged(), state,
             "[lora] the adapter of '{}' is not merged. There is nothing to take back. Call merge() before.", m.name);
  for (Module& m : modules_) m.layer.unmerge();
}

}  // namespace tg
