#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/train/reduce.h>

namespace tg {

GradientReducer::GradientReducer(std::vector<Parameter> parameters, std::shared_ptr<Communicator> comm,
                                 const Partition* partition)
    : parameters_(std::move(parameters)),
      comm_(std::move(comm)),
      partition_(partition),
      buckets_(detail::gradient_buckets(parameters_, comm_->size())),
      grads_(parameters_.size()),
      waiting_(buckets_.size()) {
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
  --missing_[bucket_of_[it->second]];
  while (waiting_ > 0 && missing_[waiting_ - 1] == 0) start_next();
}
GradMap GradientReducer::finish(const GradMap& rest) {
  for (size_t i = 0; waiting_ > 0 && i < buckets_[waiting_ - 1].last; ++i)
    if (!grads_[i]) grads_[i] = rest.native(parameters_[i].tensor);
  while (waiting_ > 0) start_next();
  while (!pending_.empty()) finish_oldest();
  return std::move(sums_);
}

void GradientReducer::start_next() {
  // One bucket is reduced while the next is computed; a third would only take memory.
  constexpr size_t kMostAtOnce = 2;
  if (pending_.size() == kMostAtOnce) finish_oldest();
  const ProfileRange range("reduce");
  std::vector<Tensor> all;
  const size_t b = --waiting_;
  for (size_t i = buckets_[b].first; i < buckets_[b].last; ++i) {
    const Parameter& p = parameters_[i];
    TG_CHECK(grads_[i], missing_gradient,
             "[train] '{}' {} has no gradient: the loss of this rank does not depend on it. Each rank needs one for "
             "each parameter, for their sums; add 0 times its sum() to the loss, or freeze it with "
             "requires_grad_(false).",
             p.name, p.tensor.shape());
    all.push_back(std::exchange(grads_[i], Tensor()));
  }
  pending_.push_back({buckets_[b].first, partition_ ? partition_->start_reduce(b, all) : start_all_reduce(all, comm_)});
}
void GradientReducer::finish_oldest() {
  const ProfileRange range("reduce");
  Pending p = std::move(pending_.front());
  pending_.pop_front();
  const Tensors sums = p.sums.finish();
  for (size_t k = 0; k < sums.size(); ++k) sums_.map()[parameters_[p.first + k].tensor.id()] = sums[k];
}

}  // namespace tg
