/// @file
/// Partition: which elements of its parameters each of several ranks updates, so that a rank keeps the state of those
/// alone (ZeRO stage 1: Rajbhandari et al. 2020). Optimizer and TrainStep use it.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/comm.h>
#include <tapegrad/models/nn/params.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tg {

/// The parameters in their order are one long row of elements, and each rank owns a piece of it. Pieces are cut at
/// stretches of square_sums(), so that the norm of all gradients has the same bits with any number of ranks. Elements
/// differ by less than two stretches between ranks, unless parameters must stay whole. All ranks call its functions
/// together.
class Partition {
 public:
  /// whole[i]: one rank owns all of parameter i, as an optimiser of whole matrices needs it.
  Partition(std::vector<Parameter>, const std::vector<bool>& whole, std::shared_ptr<Communicator>);

  /// What a rank owns of parameter i; of this rank if none is named.
  /// @{
  OwnedPart part(size_t i, int rank) const { return owned_part(cuts_, rank, begin_[i], begin_[i + 1] - begin_[i]); }
  OwnedPart part(size_t i) const { return part(i, comm_->rank()); }
  /// @}

  /// From the gradients on each rank, as_computed(), the sums over the ranks of what this rank owns: (n) for its n
  /// elements of each parameter, which may be 0. An Error if a parameter has no gradient.
  GradMap reduce(const GradMap&) const;
  /// The norm of all gradients together from those of reduce(): global_norm() of the sums, bit for bit.
  Tensor norm(const GradMap& reduced) const;
  /// All ranks get what each has made of the elements that it owns.
  void gather_parameters() const;
  /// Whole tensors on the host, of which each rank has what it owns of parameter i: on rank 0, empty on the others.
  Tensor gather_to_first(size_t i, const Tensor& owned) const;

  const std::shared_ptr<Communicator>& comm() const { return comm_; }

 private:
  std::vector<Parameter> parameters_;
  std::shared_ptr<Communicator> comm_;
  std::vector<int64_t> begin_;  // of each parameter in the row, then its length
  RankCuts cuts_;
  int64_t stretches_ = 0, first_stretch_ = 0;  // of all ranks, and before those of this one
};

}  // namespace tg
