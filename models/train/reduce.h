/// @file
/// GradientReducer: sums up gradients over the ranks bucket by bucket, each as soon as the gradients of its parameters
/// are complete, while backward computes the next. TrainStep uses it, and training loops of one's own.
#pragma once
#include <tapegrad/models/optim/partition.h>

#include <deque>

namespace tg {

/// The gradients of one step. All ranks run the same backward, so buckets are complete in the same order. Where it
/// computes in bf16, gradients travel in bf16, and are added up in f32.
class GradientReducer {
 public:
  /// For an optimiser with a partition(), this rank gets what it owns of the sums; else it gets whole sums.
  GradientReducer(std::vector<Parameter>, std::shared_ptr<Communicator>, const Partition* = nullptr);

  /// For BackwardOptions::on_leaf_grad and accumulate(): takes the gradients of its parameters away.
  void add(uint64_t leaf, Tensor& grad);
  /// The sums. `rest` has gradients that were not added so far. Without a partition a parameter may have none, on all
  /// ranks; with one it is an Error.
  GradMap finish(const GradMap& rest = {});

 private:
  void start(size_t bucket);
  void finish_oldest();
  std::vector<Parameter> parameters_;
  std::shared_ptr<Communicator> comm_;
  const Partition* partition_;
  std::vector<GradientBucket> buckets_;
  std::unordered_map<uint64_t, size_t> index_;  // of parameters, by id
  std::vector<size_t> missing_, bucket_of_;     // gradients of each bucket that are still to come
  std::vector<Tensor> grads_;                   // of each parameter
  struct Pending {
    std::vector<uint64_t> ids;
    PendingSums sums;
  };
  std::deque<Pending> pending_;  // buckets that are added up now
  GradMap sums_;
};

}  // namespace tg
