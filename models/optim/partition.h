/// @file
/// GradientBuckets and Partition: the groups of parameters that one reduction handles, and the elements that each rank
/// updates and keeps optimiser state for (ZeRO stage 1: Rajbhandari et al. 2020). Optimizer and TrainStep use them.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/training/collective.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tg {

/// Parameters [first, last) of a list, whose gradients are reduced over the ranks by one call.
struct GradientBucket {
  size_t first, last;
};
/// The parameters in order, in buckets of at least 25 MiB of f32 and at least four chunks of square_sums() per rank.
/// The last bucket has the rest.
std::vector<GradientBucket> gradient_buckets(std::span<const Parameter>, int ranks);

/// The parameters of a bucket form one row of elements, and each rank owns a shard of it. Shards start at chunks of
/// square_sums(), so that the norm of all gradients has the same bits with any number of ranks. Within a bucket ranks
/// differ by less than two chunks, unless parameters must stay whole. All ranks call its functions together.
class Partition {
 public:
  /// whole[i]: one rank owns all of parameter i, as Muon needs for matrices.
  Partition(std::vector<Parameter>, std::vector<bool> whole, std::shared_ptr<Communicator>);

  /// The shard of parameter i that `rank` owns; without a rank, this rank's.
  /// @{
  Shard part(size_t i, int rank) const;
  Shard part(size_t i) const { return part(i, comm_->rank()); }
  /// @}
  bool is_whole(size_t i) const { return whole_[i]; }  ///< whether one rank owns all of parameter i

  /// Starts the reduce-scatter of a bucket's gradients over the ranks: (n) sums for this rank's n elements of each
  /// parameter; n may be 0. GradientReducer (models/train/reduce.h) calls it.
  PendingSums start_reduce(size_t bucket, Inputs grads) const;
  /// The norm of all gradients from these sums: global_norm() of the sums, bit for bit.
  Tensor norm(const GradMap& sums) const;
  /// All ranks receive the updated elements from their owners.
  void gather_parameters() const;
  /// Gathers the shards of parameter i to the host of rank 0; empty on other ranks.
  Tensor gather_to_first(size_t i, const Tensor& owned) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<bool> whole_;
  std::shared_ptr<Communicator> comm_;
  std::vector<GradientBucket> buckets_;
  std::vector<ShardOffsets> cuts_;  // one per bucket
  std::vector<size_t> bucket_of_;   // one per parameter
  std::vector<int64_t> begin_;      // offset of each parameter in its bucket's row
  struct Stretches {
    int64_t before, mine, after;  // on lower ranks, this one, higher ones
  };
  std::vector<Stretches> stretches_;  // one per bucket
};

}  // namespace tg
