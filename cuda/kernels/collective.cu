// Kernel of ops/training/collective.h, through the host, whose sums have the bits of the CPU's. It waits for the
// device, so recordings do not hold it.
#include <tapegrad/core/backend.h>
#include <tapegrad/cuda/kernel.h>
#include <tapegrad/ops/training/collective.h>

#include <vector>

namespace tg::cuda {
namespace {
void* elements(const Buf& x) { return x.bytes + size_t(x.layout->offset) * size_of(x.dtype()); }

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context& c) {
  BackendRuntime& device = runtime_of(c.device);
  std::vector<std::vector<std::byte>> of_in, of_out;
  std::vector<RankSum> all;
  for (size_t i = 0; i < in.size(); ++i) {
    of_in.emplace_back(in[i].layout->bytes()), of_out.emplace_back(out[i].layout->bytes());
    device.copy_to_host(c.device.index, of_in[i].data(), elements(in[i]), of_in[i].size());
    all.push_back({of_in[i].data(), of_out[i].data(), in[i].numel(), in[i].dtype()});
  }
  sum_over_ranks(*op.comm, all);
  for (size_t i = 0; i < out.size(); ++i)
    device.copy_from_host(c.device.index, elements(out[i]), of_out[i].data(), of_out[i].size());
}
TG_KERNEL(op::AllReduce, cuda, all_reduce);
}  // namespace
}  // namespace tg::cuda
