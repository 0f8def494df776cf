/// @file
/// GradientReducer: reduces gradients over the ranks bucket by bucket, each once complete, while backward continues.
#pragma once
#include <tapegrad/models/optim/partition.h>

#include <deque>

namespace tg {

/// One step's gradients. Buckets start from the last to the first, on all ranks; bf16 is sent as such and accumulated
/// in f32.
class GradientReducer {
 public:
  /// With a partition (Optimizer::partition()) this rank gets its shard, else all sums.
  GradientReducer(std::vector<Parameter>, std::shared_ptr<Communicator>, const Partition* = nullptr);

  /// For BackwardOptions::on_leaf_grad and accumulate(): moves gradients out.
  void add(uint64_t leaf, Tensor& grad);
  /// Returns the sums. `rest`: gradients not yet added. A missing one is an Error: other ranks would sum it with
  /// another.
  GradMap finish(const GradMap& rest = {});

 private:
  void start_next();
  void finish_oldest();
  std::vector<Parameter> parameters_;
  std::shared_ptr<Communicator> comm_;
  const Partition* partition_;
  std::vector<GradientBucket> buckets_;
  std::unordered_map<uint64_t, size_t> index_;  // id -> parameter index
  std::vector<size_t> missing_, bucket_of_;     // gradients to come per bucket; parameters' buckets
  std::vector<Tensor> grads_;                   // indexed by parameter
  size_t waiting_;                              // buckets not started: all before this one
  struct Pending {
    size_t first;  // parameter
    PendingSums sums;
  };
  std::deque<Pending> pending_;  // buckets in flight
  GradMap sums_;
};

}  // namespace tg
