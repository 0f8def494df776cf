#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/model/lora.h>

#include <algorithm>

namespace tg {

std::vector<NamedLinear> lora_targets(const Linears& model, const LoraConfig& c) {
  std::vector<NamedLinear> r = model.matching("lora", c.targets);
  for (const NamedLinear& l : model.list)
    TG_CHECK(!l.layer->adapter, state,
             "[lora] '{}' has an adapter already. A model has one set of adapters. Load the model again, or continue "
             "with its set.",
             l.name);
  for (const NamedLinear& l : r) {
    TG_CHECK(!l.layer->fragmented, value,
             "[lora] '{}' is a FragmentedLinear: there is no weight that a delta could be added to. Leave it out.",
             l.name);
    TG_CHECK(!l.layer->prepared(), state,
             "[lora] '{}' was prepared for evaluation: its weight is gone, and nothing can be trained through it. Load "
             "the model again.",
             l.name);
    try {
      c.options().validate(l.layer->weight.size(1), l.layer->weight.size(0));
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}\n    for module '{}'", e.what(), l.name), e.scoped());
    }
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
  const DType dtype = base.dtype() == DType::f64 ? DType::f64 : DType::f32;  // optimisers need more than 16 bits
  Lora r(c, Params(base.device(), c.seed, dtype), base.dtype());
  for (const auto& l : layers)
    r.modules_.push_back({l.name, nn::LoraLinear(*l.layer, r.params_.at(l.name), c.options())});
  for (Parameter p : all) p.tensor.requires_grad_(false);
  for (size_t i = 0; i < layers.size(); ++i) *layers[i].layer = r.modules_[i].layer.linear();
  structure_changed();
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
  for (const Module& m : modules_)  // before any change
    TG_CHECK(m.layer.merged(), state,
             "[lora] the adapter of '{}' is not merged. There is nothing to take back. Call merge() before.", m.name);
  for (Module& m : modules_) m.layer.unmerge();
}

}  // namespace tg
