#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/pointwise.h>

#include <algorithm>

namespace tg {
namespace {

int64_t kept_targets(const Tensor& targets, std::optional<int64_t> ignore_index) {
  if (!ignore_index) return targets.numel();
  const auto all = targets.to_vector<int64_t>();
  return int64_t(all.size()) - std::count(all.begin(), all.end(), *ignore_index);
}

}  // namespace

Accumulated accumulate(const std::function<Tensor(const Tensor& tokens)>& logits, std::span<const Batch> micro_batches,
                       Device device, std::optional<int64_t> ignore_index) {
  Accumulated all;
  std::vector<int64_t> kept;
  for (const Batch& b : micro_batches) all.tokens += kept.emplace_back(kept_targets(b.targets, ignore_index));
  TG_CHECK(all.tokens > 0, value,
           "[accumulate] {} micro-batches without a target that is kept. A mean needs at least one. Check the targets "
           "and ignore_index.",
           micro_batches.size());
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    if (kept[i] == 0) continue;
    const double weight = double(kept[i]) / double(all.tokens);
    const auto forward = [&] {
      const ProfileRange range(Phase::forward);
      return logits(micro_batches[i].tokens.to(device));
    };
    const auto weighted_loss = [&](const Tensor& scores) {
      const ProfileRange range(Phase::loss);
      const Tensor loss = cross_entropy(scores, micro_batches[i].targets.to(device), {.ignore_index = ignore_index});
      all.loss += weight * loss.item<double>();
      return kept[i] != all.tokens ? loss * weight : loss;
    };
    const Tensor loss = weighted_loss(forward());  // the scores end before backward
    all.grads += backward(loss);
  }
  return all;
}

}  // namespace tg
