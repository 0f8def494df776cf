// Kernel of ops/training/collective.h.
#include <tapegrad/cpu/isa.h>
#include <tapegrad/ops/training/collective.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
const void* elements(const Buf& x) { return x.bytes + size_t(x.layout->offset) * size_of(x.dtype()); }

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context&) {
  std::vector<RankSum> all;
  for (size_t i = 0; i < in.size(); ++i)
    all.push_back({elements(in[i]), const_cast<void*>(elements(out[i])), in[i].numel(), in[i].dtype()});
  sum_over_ranks(*op.comm, all);
}
TG_KERNEL(op::AllReduce, cpu, all_reduce);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
