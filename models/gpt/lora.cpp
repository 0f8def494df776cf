#include <tapegrad/models/config/glob.h>
#include <tapegrad/models/gpt/lora.h>

#include <algorithm>

namespace tg {

namespace {
std::string modules_of(const std::vector<Gpt::NamedLinear>& all, const GptConfig& c) {
  std::string s;
  for (const auto& l : all)
    if (!l.name.starts_with("h.") || l.name.starts_with("h.0.")) s += (s.empty() ? "" : ", ") + l.name;
  if (c.layers == 2) s += ", and in h.1 as in h.0";
  if (c.layers > 2) s += fmt::format(", and in h.1 to h.{} as in h.0", c.layers - 1);
  return fmt::format("The modules are {}{}.", s, c.tied_head ? "; lm_head is the token table, and is not one" : "");
}
bool is_target(const LoraConfig& c, std::string_view name) {
  return std::any_of(c.targets.begin(), c.targets.end(), [&](auto& pattern) { return glob_matches(pattern, name); });
}
}  // namespace

std::vector<Gpt::NamedLinear> lora_targets(Gpt& model, const LoraConfig& c) {
  const std::vector<Gpt::NamedLinear> all = model.linears();
  const std::string there = modules_of(all, model.config());
  TG_CHECK(!c.targets.empty(), value, "[lora] there are no targets. At least one pattern must name modules. {}", there);
  for (const std::string& pattern : c.targets)
    TG_CHECK(std::any_of(all.begin(), all.end(), [&](auto& l) { return glob_matches(pattern, l.name); }), value,
             "[lora] the target '{}' matches no module. Each target must match at least one; * stands for any "
             "characters. {}",
             pattern, there);
  std::vector<Gpt::NamedLinear> r;
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

GptLora apply_lora(Gpt& model, const Params& base, const LoraConfig& c) {
  const auto layers = lora_targets(model, c);
  const std::vector<Parameter> all = base.all();
  for (const auto& l : layers)
    TG_CHECK(
        std::any_of(all.begin(), all.end(), [&](auto& p) { return p.tensor.id() == l.layer->weight.id(); }), value,
        "[lora] the weight of '{}' is not among the {} parameters given. All of the model's are to be frozen. Pass "
        "the Params that the model was made from.",
        l.name, all.size());
  const DType dtype = base.dtype() == DType::f64 ? DType::f64 : DType::f32;  // an optimiser needs more than 16 bits
  GptLora r(c, Params(base.device(), c.seed, dtype));
  for (const auto& l : layers)
    r.modules_.push_back({l.name, nn::LoraLinear(*l.layer, r.params_.at(l.name), c.options())});
  for (Parameter p : all) p.tensor.requires_grad_(false);
  for (size_t i = 0; i < layers.size(); ++i) *layers[i].layer = r.modules_[i].layer.linear();
  return r;
}

bool GptLora::merged() const { return modules_.front().layer.merged(); }
void GptLora::merge() {
  for (size_t i = 0; i < modules_.size(); ++i) {
    try {
      modules_[i].layer.merge();
    } catch (...) {
      while (i > 0) modules_[--i].layer.unmerge();
      throw;
    }
  }
}
void GptLora::unmerge() {
  for (const Module& m : modules_)  // before any of them is
    TG_CHECK(m.layer.merged(), state,
             "[lora] the adapter of '{}' is not merged. There is nothing to take back. Call merge() before.", m.name);
  for (Module& m : modules_) m.layer.unmerge();
}

}  // namespace tg
