/// @file
/// Sums over the processes of a Communicator. Data parallel training adds up its gradients with it.
#pragma once
#include <tapegrad/core/comm.h>
#include <tapegrad/core/op.h>

#include <memory>

namespace tg {
namespace op {

/// (any number of tensors) -> the sum of each over the ranks.
struct AllReduce : OpOf<AllReduce> {
  static constexpr auto kName = "all_reduce";
  std::shared_ptr<Communicator> comm;
  explicit AllReduce(std::shared_ptr<Communicator> c) : comm(std::move(c)) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(reinterpret_cast<uintptr_t>(comm.get()))); }
};
}  // namespace op

/// The sum of each tensor over the ranks, in their order: ((x0 + x1) + x2) + ... All ranks call it with as many tensors
/// of the same shapes and dtypes, and run their ops in one order, so that calls meet. Results are f64, i64 or f32, as
/// the tensor is, and f32 for bf16, whose elements are added up as they come. There is no gradient. On the CPU,
/// and by NCCL on GPUs, with the same bits.
Tensors all_reduce(Inputs, std::shared_ptr<Communicator>);

}  // namespace tg
