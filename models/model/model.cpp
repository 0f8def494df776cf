#include <tapegrad/core/check.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {

namespace {
// f, or an Error if it is missing.
template <class F> const F& needed(const F& f, std::string_view member, std::string_view use) {
  TG_CHECK(f, value,
           "[model] this model has no {}, which {} needs. Add that member; models/model/model.h shows all of them.",
           member, use);
  return f;
}
}  // namespace

KvCache Model::make_cache(int64_t batch, int64_t capacity) const {
  return needed(make_cache_, "make_cache()", "generate() with a cache")(batch, capacity);
}
std::string Model::config() const { return needed(config_, "config(), with visit_fields()", "save_model()")(); }
std::vector<NamedLinear> Model::linears() { return needed(linears_, "linears()", "apply_lora()")(); }

void Model::check(const ForwardOptions& o) const {
  const ForwardSupport s = support();
  const auto follow = [](bool asked, bool has, std::string_view name, std::string_view way) {
    TG_CHECK(!asked || has, value,
             "[model] forward() is asked for `{0}`, which this model does not support. A model lists in kSupport what "
             "it supports. Leave `{0}` out{1}.",
             name, way);
  };
  follow(o.cache, s.cache, "cache", "");
  follow(bool(o.lengths), s.lengths, "lengths", "");
  follow(o.compute.has_value(), s.compute, "compute", "; in a run it is the setting `dtype`");
  follow(o.recompute, s.recompute, "recompute", "; a RecomputeScope, `recompute` cheap in a run, works with any model");
  follow(!o.adapters, s.adapters, "adapters", "; it asks for the base model without LoRA");
}

Tensor Model::forward(const Tensor& inputs, const ForwardOptions& o) const {
  check(o);
  Tensor y = forward_(inputs, o);
  if (!o.last_only || support().last_only) return y;
  TG_CHECK(y.ndim() == 3, shape, "[model] last_only takes the last position of logits (B, T, V), and these are {}.", y);
  return slice(y, 1, y.size(1) - 1, y.size(1));
}

Tensor Model::loss(const Batch& batch, const ForwardOptions& o, Reduction reduction) const {
  check(o);
  Tensor y;
  if (loss_) y = loss_(batch, o, reduction);
  if (!y) {
    {
      const ProfileRange range(Phase::forward);
      y = forward_(batch.inputs, o);
    }
    const ProfileRange range(Phase::loss);
    y = cross_entropy(y, batch.targets,
                      {.reduction = reduction, .ignore_index = Batch::kIgnoreIndex});  // frees the logits
  }
  TG_CHECK(y.ndim() == 0 || reduction == Reduction::none, shape,
           "[model] loss() returned {}. It must be a scalar, the mean over the targets.", y);
  return y;
}

}  // namespace tg
