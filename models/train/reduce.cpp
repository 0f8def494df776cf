#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/train/reduce.h>
#include <tapegrad/ops/training/collective.h>

namespace tg {

GradientReducer::GradientReducer(std::vector<Parameter> parameters, std::shared_ptr<Communicator> comm,
                                 const Partition* partition)
    : parameters_(std::move(parameters)),
      comm_(std::move(comm)),
      partition_(partition),
      buckets_(gradient_buckets(parameters_, comm_->size())),
      grads_(parameters_.size()) {
  for (const GradientBucket& b : buckets_) {
    for (size_t i = b.first; i < b.last; ++i)
      index_.emplace(parameters_[i].tensor.id(), i), bucket_of_.push_back(missing_.size());
    missing_.push_back(b.last - b.first);
  }
}

void GradientReducer::add(uint64_t leaf, Tensor& grad) {
  const auto it = index_.find(leaf);
  if (it == index_.end()) return;
  grads_[it->second] = std::exchange(grad, Tensor());
  const size_t b = bucket_of_[it->second];
  if (--missing_[b] == 0) reduce(b);
}
GradMap GradientReducer::finish(const GradMap& rest) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (missing_[b] == 0) continue;
    for (size_t i = buckets_[b].first; i < buckets_[b].last; ++i)
      if (!grads_[i]) grads_[i] = rest.as_computed(parameters_[i].tensor);
    reduce(b);
  }
  return std::move(sums_);
}

void GradientReducer::reduce(size_t b) {
  const NoGradScope off;
  const ProfileRange range("reduce");
  std::vector<Tensor> all;
  std::vector<uint64_t> ids;
  for (size_t i = buckets_[b].first; i < buckets_[b].last; ++i) {
    const Parameter& p = parameters_[i];
    TG_CHECK(grads_[i] || !partition_, missing_gradient,
             "[train] '{}' {} has no gradient: the loss does not depend on it. Ranks that share an optimiser need one "
             "for each parameter; freeze it with requires_grad_(false), or leave it out.",
             p.name, p.tensor.shape());
    if (grads_[i]) all.push_back(std::exchange(grads_[i], Tensor())), ids.push_back(p.tensor.id());
  }
  if (all.empty()) return;
  const Tensors sums = partition_ ? partition_->reduce(b, all) : all_reduce(all, comm_);
  for (size_t k = 0; k < ids.size(); ++k) sums_.map()[ids[k]] = sums[k];
}

}  // namespace tg
