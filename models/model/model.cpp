#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {

void Model::misses(std::string_view member, std::string_view use) {
  throw Error(Error::Kind::value,
              fmt::format("[model] this model has no {}, which {} needs. Add that member; models/model/model.h shows "
                          "all of them.",
                          member, use));
}

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
}

Tensor Model::forward(const Tensor& inputs, const ForwardOptions& o) const {
  check(o);
  Tensor y = own_->forward(inputs, o);
  if (!o.last_only || support().last_only) return y;
  TG_CHECK(y.ndim() == 3, shape, "[model] last_only takes the last position of logits (B, T, V), and these are {}.", y);
  return slice(y, 1, y.size(1) - 1, y.size(1));
}

Tensor Model::loss(const Batch& batch, const ForwardOptions& o) const {
  check(o);
  return own_->loss(batch, o);
}
Tensor Model::own_loss(const std::function<Tensor()>& loss) {
  const ProfileRange range(Phase::forward);
  Tensor y = loss();
  TG_CHECK(y.ndim() == 0, shape, "[model] loss() returned {}. It must be a scalar, the mean over the targets.", y);
  return y;
}
Tensor Model::loss_of(const std::function<Tensor()>& logits, const Tensor& targets) {
  const auto forward = [&] {
    const ProfileRange range(Phase::forward);
    return logits();
  };
  const auto loss = [&](const Tensor& scores) {
    const ProfileRange range(Phase::loss);
    return cross_entropy(scores, targets, {.ignore_index = Batch::kIgnoreIndex});
  };
  return loss(forward());  // frees the scores on return
}

}  // namespace tg
