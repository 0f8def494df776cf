/// @file
/// GradientBuckets and Partition: what ranks sum up together, and which elements of the parameters each of them
/// updates, so that a rank keeps the optimiser's state of those alone (ZeRO stage 1: Rajbhandari et al. 2020).
/// Optimizer and TrainStep use them.
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

/// Parameters [first, last) of a list, whose gradients are summed up over the ranks by one call.
struct GradientBucket {
  size_t first, last;
};
/// The parameters in order, in buckets of 25 MiB of f32 or more, and of four stretches of square_sums() for each rank
/// or more. The last bucket has what is left.
std::vector<GradientBucket> gradient_buckets(std::span<const Parameter>, int ranks);

/// The parameters of a bucket are one long row of elements, and each rank owns a piece of it. Pieces are cut at
/// stretches of square_sums(), so that the norm of all gradients has the same bits with any number of ranks. Within a
/// bucket ranks differ by less than two stretches, unless parameters must stay whole. All ranks call its functions
/// together.
class Partition {
 public:
  /// whole[i]: one rank owns all of parameter i, as an optimiser of whole matrices needs it.
  Partition(std::vector<Parameter>, std::vector<bool> whole, std::shared_ptr<Communicator>);

  /// What a rank owns of parameter i; of this rank if none is named.
  /// @{
  Shard part(size_t i, int rank) const;
  Shard part(size_t i) const { return part(i, comm_->rank()); }
  /// @}
  bool is_whole(size_t i) const { return whole_[i]; }  ///< whether one rank owns all of parameter i

  /// From the gradients of one of the gradient_buckets() on each rank, the sums over the ranks of what this rank owns:
  /// (n) for its n elements of each parameter, which may be 0. GradientReducer (models/train/reduce.h) calls it.
  PendingSums start_reduce(size_t bucket, Inputs grads) const;
  /// The norm of all gradients together from these sums: global_norm() of the sums, bit for bit.
  Tensor norm(const GradMap& sums) const;
  /// All ranks get what each has made of the elements that it owns.
  void gather_parameters() const;
  /// Gathers the shards of parameter i to the host of rank 0; empty on other ranks.
  Tensor gather_to_first(size_t i, const Tensor& owned) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<bool> whole_;
  std::shared_ptr<Communicator> comm_;
  std::vector<GradientBucket> buckets_;
  std::vector<ShardOffsets> cuts_;  // of each bucket
  std::vector<size_t> bucket_of_;   // of each parameter
  std::vector<int64_t> begin_;      // of each parameter in its bucket's row
  struct Stretches {
    int64_t before, mine, after;  // of lower ranks, of this one, of higher ones
  };
  std::vector<Stretches> stretches_;  // of each bucket
};

}  // namespace tg
