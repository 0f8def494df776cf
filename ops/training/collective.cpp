#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/training/collective.h>

namespace tg {
Layouts op::AllReduce::infer(Inputs in) const {
  Layouts all;
  for (const Tensor& x : in)
    all.emplace_back(Layout::contiguous(x.shape(), rank_sum_dtype(kName, x.dtype()), x.device()));
  return all;
}
Tensors all_reduce(Inputs x, std::shared_ptr<Communicator> comm) {
  TG_CHECK(comm, value, "[all_reduce] the communicator is null. Pass Communicator::world().");
  TG_CHECK(!x.empty(), value, "[all_reduce] no tensors. Pass at least one.");
  const NoGradScope off;
  return emit(make_ref<op::AllReduce>(std::move(comm)), x);
}
}  // namespace tg
