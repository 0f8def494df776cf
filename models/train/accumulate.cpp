#include <tapegrad/core/check.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/ops/pointwise.h>

namespace tg {
Accumulated accumulate(const std::function<Tensor(const Batch&)>& loss, std::span<const Batch> micro_batches,
                       Device device) {
  Accumulated all;
  std::vector<int64_t> kept;
  for (const Batch& b : micro_batches) all.targets += kept.emplace_back(b.kept());
  TG_CHECK(all.targets > 0, value,
           "[accumulate] {} micro-batches without a target that is kept. A mean needs at least one. Check the targets; "
           "Batch::kIgnored leaves one out.",
           micro_batches.size());
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    if (kept[i] == 0) continue;
    const double weight = double(kept[i]) / double(all.targets);
    const auto weighted = [&] {
      const Tensor mean = loss(micro_batches[i].to(device));
      const ProfileRange range(Phase::loss);
      all.loss += weight * mean.item<double>();
      return kept[i] != all.targets ? mean * weight : mean;
    };
    all.grads += backward(weighted());
  }
  return all;
}

}  // namespace tg
