#include <tapegrad/cpu/simd/isa.h>
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/training/collective.h>

#include <cstring>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
std::byte* elements(const Buf& x) { return x.bytes + x.layout->offset * int64_t(size_of(x.dtype())); }
std::vector<ReduceBuffer> sums(Bufs in, Bufs out) {
  std::vector<ReduceBuffer> all;
  for (size_t i = 0; i < in.size(); ++i)
    all.push_back({elements(in[i]), elements(out[i]), in[i].numel(), in[i].dtype()});
  return all;
}

const void* issue_ticket(const Buf& ticket) {
  *ticket.data<int64_t>() = 0;  // equal in every run
  return ticket.bytes;
}

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context&) {
  op.comm->submit(issue_ticket(out.back()), [comm = op.comm.get(), all = sums(in, out)] { all_reduce(*comm, all); });
}
void reduce_scatter(const op::ReduceScatter& op, Bufs in, Bufs out, Context&) {
  op.comm->submit(issue_ticket(out.back()),
                  [comm = op.comm.get(), all = sums(in, out), cuts = op.cuts] { reduce_scatter(*comm, all, cuts); });
}
void finish_sums(const op::FinishSums& op, Bufs in, Bufs out, Context&) {
  op.comm->wait(in.back().bytes);
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].bytes != in[i].bytes && out[i].numel() > 0)
      std::memcpy(elements(out[i]), elements(in[i]), out[i].layout->bytes());
}
void all_gather_parts(const op::AllGatherParts& op, Bufs in, Bufs out, Context&) {
  const size_t n = in.size() - op.copied.size();
  std::vector<ShardedTensor> all;
  for (const Buf& w : out.first(n)) {
    const Buf& old = in[all.size()];
    if (old.bytes != w.bytes && w.numel() > 0) std::memcpy(elements(w), elements(old), w.layout->bytes());
    all.push_back({elements(w), w.numel(), size_of(w.dtype())});
  }
  all_gather(*op.comm, all, op.cuts);
  for (size_t k = 0; k < op.copied.size(); ++k) {
    const float* const from = out[op.copied[k]].data<float>();
    bf16* const to = out[n + k].data<bf16>();
    parallel_for(out[n + k].numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = bf16(from[i]);
    });
  }
}
TG_KERNEL(op::AllReduce, cpu, all_reduce);
TG_KERNEL(op::ReduceScatter, cpu, reduce_scatter);
TG_KERNEL(op::FinishSums, cpu, finish_sums);
TG_KERNEL(op::AllGatherParts, cpu, all_gather_parts);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
