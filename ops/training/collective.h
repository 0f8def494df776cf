/// @file
/// Sums over the processes of a Communicator, at once or while the caller computes. Data parallel training adds up its
/// gradients with them.
#pragma once
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/core/op.h>

#include <memory>

namespace tg {
namespace op {

/// (any number of contiguous tensors) -> tensors for the sum of each over the ranks, and a ticket. FinishSums waits for
/// the sums; the address of the ticket says which.
struct AllReduce : OpOf<AllReduce> {
  static constexpr auto kName = "all_reduce";
  std::shared_ptr<Communicator> comm;
  explicit AllReduce(std::shared_ptr<Communicator> c) : comm(std::move(c)) {}
  Traits traits() const override { return {.communicates = true, .asynchronous = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(reinterpret_cast<uintptr_t>(comm.get()))); }
};
/// (any number of contiguous tensors) -> of each, a tensor for the sum over the ranks of what this rank owns, (n), and
/// a ticket.
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
/// (w_0 ... w_n-1, copy ...) -> the same with what each rank owns of the w, and with the copies of parameter_as() that
/// some of them have.
struct AllGatherParts : OpOf<AllGatherParts> {
  static constexpr auto kName = "all_gather_parts";
  std::shared_ptr<Communicator> comm;
  ShardOffsets cuts;
  std::vector<uint32_t> copied;  ///< which w have a copy, in order
  AllGatherParts(std::shared_ptr<Communicator> c, ShardOffsets x) : comm(std::move(c)), cuts(std::move(x)) {}
  Traits traits() const override { return {.updates_in_place = true, .communicates = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash&) const override;
};
}  // namespace op

/// Sums over the ranks that are under way while the caller computes. It keeps the values that they read, whatever the
/// tensors become, and the memory that they write.
class PendingSums {
 public:
  ~PendingSums();  ///< waits for the exchange, if finish() was not called
  PendingSums(PendingSums&&) = default;
  PendingSums& operator=(PendingSums&&) = delete;
  /// The sums; what runs after it waits for the exchange. An Error the second time.
  Tensors finish();

 private:
  friend PendingSums start_all_reduce(Inputs, std::shared_ptr<Communicator>);
  friend PendingSums start_reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);
  PendingSums(OpPtr, Inputs, std::shared_ptr<Communicator>);
  std::vector<Tensor> all_;  // the inputs of FinishSums
  std::shared_ptr<Communicator> comm_;
};

/// The sum of each tensor over the ranks, in their order: ((x0 + x1) + x2) + ... All ranks call it with as many tensors
/// of the same shapes and dtypes, and run their ops in one order, so that calls meet. Results are f64, i64 or f32, as
/// the tensor is, and f32 for bf16, whose elements are added up as they come. There is no gradient. On the CPU,
/// and by NCCL on GPUs, with the same bits.
Tensors all_reduce(Inputs, std::shared_ptr<Communicator>);
/// Of each tensor, the sum as all_reduce() makes it of the part that this rank owns by the cuts, (n) for its n elements
/// in row-major order; n may be 0. Calls, dtypes and gradients are as for all_reduce().
Tensors reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);
/// The same, of which PendingSums::finish() hands out the results. Until then ranks exchange data while the caller
/// computes: on the CPU in a thread, if MPI allows threads, and on GPUs in a stream.
/// @{
PendingSums start_all_reduce(Inputs, std::shared_ptr<Communicator>);
PendingSums start_reduce_scatter(Inputs, const ShardOffsets&, std::shared_ptr<Communicator>);
/// @}
/// All ranks get what its owner has of each weight, in place if nobody else reads the old values, and so do their
/// copies of parameter_as(). Weights are leaves, of a dtype whose elements have 2 bytes or more. Nothing is recorded.
void all_gather_parts(Inputs w, const ShardOffsets&, std::shared_ptr<Communicator>);

}  // namespace tg
