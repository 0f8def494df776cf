#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {

MicroBatches::MicroBatches(std::span<const Batch> all) {
  std::vector<double> kept;
  for (const Batch& b : all) {
    const int64_t n = b.num_targets();
    if (n == 0) continue;
    batches.push_back(b), kept.push_back(double(n));
    targets += n;
  }
  TG_CHECK(targets > 0, value,
           "[accumulate] {} micro-batches without a kept target. A mean needs at least one. Check the targets; "
           "Batch::kIgnoreIndex marks those that are ignored.",
           all.size());
  if (kept.size() == 1) return;
  for (double& n : kept) n /= double(targets);
  weights = tensor(kept, {int64_t(kept.size())});
}

MicroBatches MicroBatches::shard(int rank, int size) const {
  const auto all = int64_t(batches.size()), each = all / size;
  TG_CHECK(all % size == 0, value,
           "[accumulate] {} micro-batches with kept targets cannot be shared equally by {} ranks. Their number must be "
           "a multiple of {}. Change accumulate, or give each micro-batch a target.",
           all, size, size);
  MicroBatches m;
  m.batches.assign(batches.begin() + rank * each, batches.begin() + (rank + 1) * each);
  if (weights) m.weights = slice(weights, 0, rank * each, (rank + 1) * each).contiguous();
  m.targets = targets;
  return m;
}

Accumulated accumulate(const std::function<Tensor(const Batch&)>& loss, const MicroBatches& micro, Device device,
                       const std::source_location& where,
                       const std::function<void(uint64_t leaf, Tensor& grad)>& complete) {
  Accumulated all;
  const Tensor weights = micro.weights ? micro.weights.to(device) : Tensor();
  for (size_t i = 0; i < micro.batches.size(); ++i) {
    const auto weighted = [&] {
      const Tensor mean = loss(micro.batches[i].to(device));
      const ProfileRange range(Phase::loss);
      const Tensor part = mean.detach().to(DType::f64);
      if (!weights) {
        all.loss = part;
        return mean;
      }
      const Tensor weight = reshape(slice(weights, 0, int64_t(i), int64_t(i) + 1), {});
      all.loss = all.loss ? all.loss + part * weight : part * weight;
      const DType wide = mean.dtype() == DType::f64 ? DType::f64 : DType::f32;
      return mean.to(wide) * weight.to(wide);
    };
    BackwardOptions o;
    if (complete && i + 1 == micro.batches.size())
      o.on_leaf_grad = [&](uint64_t leaf, Tensor& grad) {
        if (i > 0) grad = widened(grad);  // ranks reduce one dtype, whichever batches reach the leaf
        if (const auto sum = all.grads.map().extract(leaf)) grad = widened(sum.mapped()) + grad;
        complete(leaf, grad);
      };
    all.grads += backward(weighted(), std::move(o), where);
  }
  if (complete && micro.batches.size() > 1)
    for (auto& [leaf, grad] : all.grads.map()) grad = widened(grad);
  return all;
}

}  // namespace tg
