/// @file
/// GradientBuckets and Partition: each rank's shard of updates and optimiser state (ZeRO stage 1: Rajbhandari et al.,
/// 2020).
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

/// Parameters [first, last) whose gradients one call reduces over the ranks.
struct GradientBucket {
  size_t first, last;
};
namespace detail {
/// The parameters in order, in buckets of at least 25 MiB of f32 and four chunks of square_sums() per rank.
std::vector<GradientBucket> gradient_buckets(std::span<const Parameter>, int ranks);
}  // namespace detail

/// A bucket's elements, sharded over ranks at chunks of square_sums(): the gradient norm has the same bits for any
/// number of ranks. All ranks call its functions together.
class Partition {
 public:
  /// whole[i]: one rank owns parameter i (Muon's matrices).
  Partition(std::vector<Parameter>, std::vector<bool> whole, std::shared_ptr<Communicator>);

  /// Shard of parameter i on `rank`; default: this rank.
  /// @{
  Shard part(size_t i, int rank) const;
  Shard part(size_t i) const { return part(i, comm_->rank()); }
  /// @}
  bool is_whole(size_t i) const { return whole_[i]; }

  /// Starts the reduce-scatter of a bucket: (n) sums for this rank's n elements of each parameter; n may be 0.
  PendingSums start_reduce(size_t bucket, Inputs grads) const;
  /// Gradients' norm, with the bits of global_norm() of the sums.
  Tensor norm(const GradMap& sums) const;
  /// All ranks receive updated elements.
  void gather_parameters() const;
  /// Gathers parameter i to the host of rank 0; empty on other ranks.
  Tensor gather_to_first(size_t i, const Tensor& owned) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<bool> whole_;
  std::shared_ptr<Communicator> comm_;
  std::vector<GradientBucket> buckets_;
  std::vector<ShardOffsets> cuts_;  // indexed by bucket
  std::vector<size_t> bucket_of_;   // indexed by parameter
  std::vector<int64_t> begin_;      // parameters' offsets in their bucket
  struct Segments {
    int64_t before, mine, after;  // elements on lower ranks, this one, higher ones
  };
  std::vector<Segments> segments_;  // indexed by bucket
};

}  // namespace tg
