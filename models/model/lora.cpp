#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/model/lora.h>

#include <algorithm>

namespace tg {

namespace {
template <class T>
T first_match(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module, T otherwise) {
  const auto at = std::ranges::find_if(patterns, [&](auto& p) { return detail::glob_matches(p.first, module); });
  return at == patterns.end() ? otherwise : at->second;
}
// Calls f(name, rows) for each module: parts or the whole layer.
template <class F> void for_modules(const NamedLinear& l, F f) {
  if (l.parts.empty()) f(l.name, nn::LoraRows{0, l.layer->out()});
  for (const auto& p : l.parts) f(p.name, p.rows);
}
}  // namespace

nn::LoraOptions LoraConfig::options(const std::string& module) const {
  return {.rank = first_match(rank_pattern, module, rank),
          .alpha = first_match(alpha_pattern, module, alpha),
          .dropout = dropout,
          .rslora = rslora};
}

std::vector<NamedLinear> detail::lora_targets(const Linears& model, const LoraConfig& c) {
  Linears rest = model;
  std::erase_if(rest.list, &NamedLinear::whole);
  std::vector<NamedLinear> r = rest.matching("lora", c.targets, /*parts=*/true);
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
    for_modules(l, [&](const std::string& name, nn::LoraRows rows) {
      explained([&] { c.options(name).validate(l.layer->in(), rows.count); },
                [&](const Error&) { return fmt::format("    for module '{}'", name); });
    });
  }
  return r;
}

Lora apply_lora(const Linears& model, const Params& base, const LoraConfig& c) {
  const auto layers = detail::lora_targets(model, c);
  std::vector<NamedLinear> changed = layers;
  std::ranges::copy_if(model.list, std::back_inserter(changed), &NamedLinear::whole);
  const std::vector<Parameter> all = base.all();
  for (const auto& l : changed)
    TG_CHECK(
        l.layer->blocks ||
            std::ranges::any_of(all, [&](auto& p) { return l.layer->weight && p.tensor.id() == l.layer->weight.id(); }),
        value,
        "[lora] the weight of '{}' is not among the {} parameters given. All of the model's are to be frozen. Pass "
        "the Params that the model was made from.",
        l.name, all.size());
  const DType dtype = base.dtype() == DType::f64 ? DType::f64 : DType::f32;  // optimisers need more than 16 bits
  Lora r(c, Params(base.device(), c.seed, dtype), base.dtype());
  std::vector<nn::Linear> adapted;
  for (const auto& l : layers) {
    nn::Linear linear = *l.layer;
    for_modules(l, [&](const std::string& name, nn::LoraRows rows) {
      r.modules_.push_back({name, l.name, nn::LoraLinear(linear, r.params_.at(name), c.options(name), rows)});
      linear = r.modules_.back().layer.linear();
    });
    adapted.push_back(std::move(linear));
  }
  for (Parameter p : all) p.tensor.requires_grad_(false);
  for (size_t i = layers.size(); i < changed.size(); ++i)
    for (const auto& [name, t] : {std::pair("weight", &changed[i].layer->weight), {"bias", &changed[i].layer->bias}}) {
      if (!*t) continue;
      const Tensor own = r.params_.at(changed[i].name).get(name, t->shape(), Init::constant(0));
      own.assign(t->to(dtype));
      r.whole_[fmt::format("{}.{}", changed[i].name, name)] = *t;
      *t = own;
    }
  for (size_t i = 0; i < layers.size(); ++i) *layers[i].layer = std::move(adapted[i]);
  structure_changed();
  return r;
}

bool Lora::merged() const { return modules_.front().layer.merged(); }
// A layer's modules are adjacent and merge together.
std::vector<nn::LoraLinear> Lora::layers() const {
  std::vector<nn::LoraLinear> r;
  for (size_t i = 0; i < modules_.size(); ++i)
    if (i == 0 || modules_[i].linear != modules_[i - 1].linear) r.push_back(modules_[i].layer);
  return r;
}
void Lora::merge() {
  const auto alone = modules_.front().layer.linear().adapter->user.use_within("lora", "adapter");
  std::vector<nn::LoraLinear> all = layers();
  for (size_t i = 0; i < all.size(); ++i) {
    try {
      all[i].merge();
    } catch (...) {
      while (i > 0) all[--i].unmerge();
      throw;
    }
  }
  for (const auto& [name, base] : whole_) {
    (*unmerged_)[name] = base.detach();
    base.assign(params_.state().at(name).detach().to(base.device()).to(base.dtype()));
  }
}
void Lora::unmerge() {
  const auto alone = modules_.front().layer.linear().adapter->user.use_within("lora", "adapter");
  for (const Module& m : modules_)  // checked before changes
    TG_CHECK(m.layer.merged(), state,
             "[lora] the adapter of '{}' is not merged. There is nothing to take back. Call merge() before.", m.name);
  for (nn::LoraLinear& l : layers()) l.unmerge();
  for (const auto& [name, base] : whole_) base.assign(unmerged_->at(name));
}
void Lora::keep_reference() {
  for (const nn::LoraLinear& l : layers()) {
    const auto copy = std::make_shared<nn::LoraAdapter>(*l.linear().adapter);
    for (auto& p : copy->parts)
      for (Tensor* const t : {&p.delta.a, &p.delta.b}) {
        Tensor frozen = params_.get(fmt::format("{}_reference", t->label()), t->shape(), Init::constant(0));
        frozen.requires_grad_(false).assign(t->detach());
        *t = frozen;
      }
    l.linear().adapter->reference = copy;
  }
  structure_changed();
}

}  // namespace tg
