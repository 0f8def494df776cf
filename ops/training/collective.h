/// @file
/// Reductions over the processes of a Communicator, blocking or asynchronous, for data-parallel training.
#pragma once
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/core/op.h>

#include <memory>

namespace tg {
namespace op {

/// (any number of contiguous tensors) -> tensors for the sum of each over the ranks, and a ticket, whose address is
/// FinishSums' key.
struct AllReduce : OpOf<AllReduce> {
  static constexpr auto kName = "all_reduce";
  std::shared_ptr<Communicator> comm;
  explicit AllReduce(std::shared_ptr<Communicator> c) : comm(std::move(c)) {}
  Traits traits() const override { return {.communicates = true, .asynchronous = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(reinterpret_cast<uintptr_t>(comm.get()))); }
};
/// (any number of contiguous tensors) -> for each, the sum over the ranks of this rank's shard, (n); and a ticket.
struct ReduceScatter : OpOf<ReduceScatter> {
  static constexpr auto kName = "reduce_scatter";
  std::shared_ptr<Communicator> comm;
  ShardOffsets cuts;
  ReduceScatter(std::shared_ptr<Communicator> c, ShardOffsets x) : comm(std::move(c)), cuts(std::move(x)) {}
  Traits traits() const override { return {.communicates = true, .asynchronous = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash&) const override;
};
/// (the n outputs of an AllReduce or a ReduceScatter, its n inputs, its ticket) -> the sums, in place.
struct FinishSums : OpOf<FinishSums> {
  static constexpr auto kName = "finish_sums";
  std::shared_ptr<Communicator> comm;
  explicit FinishSums(std::shared_ptr<Communicator> c) : comm(std::move(c)) {}
  Traits traits() const override { return {.updates_in_place = true, .communicates = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(reinterpret_cast<uintptr_t>(comm.get()))); }
  OpWork work(Bufs, Bufs) const override { return {}; }
};
/// (w_0 ... w_n-1, copy ...) -> each w with the shards of all ranks, and its cast_parameter() copy if it has one.
struct AllGatherParts : OpOf<AllGatherParts> {
  static constexpr auto kName = "all_gather_parts";
  std::shared_ptr<Communicator> comm;
  ShardOffsets cuts;
  std::vector<uint32_t> copied;  ///< indices of w with a copy, in order
  AllGatherParts(std::shared_ptr<Communicator> c, ShardOffsets x) : comm(std::move(c)), cuts(std::move(x)) {}
  Traits traits() const override { return {.updates_in_place = true, .communicates = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash&) const override;
};
}  // namespace op

class PendingSums;
/// Asynchronous all_reduce() and reduce_scatter(), with the results from PendingSums::finish(). Ranks exchange data
/// while the caller computes: on the CPU in a thread, if MPI allows threads, on GPUs in a stream.
/// @{
PendingSums start_all_reduce(Inputs, std::shared_ptr<Communicator>);
PendingSums start_reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);
/// @}
namespace detail {
/// Gives all ranks the owners' shards of each weight, in place if no other handle has the old values, and updates
/// cast_parameter() copies. Weights are leaves, of 2 bytes or more per element. The op is not recorded.
void all_gather_parts(Inputs w, const ShardOffsets&, std::shared_ptr<Communicator>);
}  // namespace detail

/// Asynchronous sums over the ranks. Keeps the values that they read and the memory that they write.
class PendingSums {
 public:
  ~PendingSums();  ///< waits unless finish() was called
  PendingSums(PendingSums&&) = default;
  PendingSums& operator=(PendingSums&&) = delete;
  /// Sums; later ops depend on the exchange. An Error the second time.
  Tensors finish();

 private:
  friend PendingSums start_all_reduce(Inputs, std::shared_ptr<Communicator>);
  friend PendingSums start_reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);
  PendingSums(OpPtr, Inputs, std::shared_ptr<Communicator>);
  std::vector<Tensor> all_;  // inputs of FinishSums
  std::shared_ptr<Communicator> comm_;
};

/// Sum of each tensor over the ranks, in order: ((x0 + x1) + x2) + ... All ranks call it with the same number of
/// tensors, shapes and dtypes, and run their ops in one order. Results have the tensor's dtype, f64, i64 or f32, and
/// f32 for bf16, whose elements are added unrounded. No gradient. The CPU and NCCL give the same bits.
Tensors all_reduce(Inputs, std::shared_ptr<Communicator>);
/// all_reduce() restricted to this rank's shard of each tensor: (n) for its n >= 0 elements in row-major order.
Tensors reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);

}  // namespace tg
