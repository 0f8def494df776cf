// Kernels of ops/training/collective.h, through the host, whose sums have the bits of the CPU's. It waits for the
// device, so recordings do not hold it.
#include <tapegrad/core/backend.h>
#include <tapegrad/cuda/kernel.h>
#include <tapegrad/ops/training/collective.h>

#include <vector>

namespace tg::cuda {
namespace {
void* elements(const Buf& x) { return x.bytes + size_t(x.layout->offset) * size_of(x.dtype()); }

// Copies of tensors on the host.
class OnHost {
 public:
  OnHost(Context& c, Bufs all) : device_(runtime_of(c.device)), index_(c.device.index), all_(all) {
    for (const Buf& x : all) host_.emplace_back(x.layout->bytes());
  }
  void read(Bufs from) {
    for (size_t i = 0; i < all_.size(); ++i)
      device_.copy_to_host(index_, host_[i].data(), elements(from[i]), host_[i].size());
  }
  void write() {
    for (size_t i = 0; i < all_.size(); ++i)
      device_.copy_from_host(index_, elements(all_[i]), host_[i].data(), host_[i].size());
  }
  void* operator[](size_t i) { return host_[i].data(); }

 private:
  BackendRuntime& device_;
  int index_;
  Bufs all_;
  std::vector<std::vector<std::byte>> host_;
};
template <class F> void sum(Bufs in, Bufs out, Context& c, F&& run) {
  OnHost from(c, in), to(c, out);
  from.read(in);
  std::vector<RankSum> all;
  for (size_t i = 0; i < in.size(); ++i) all.push_back({from[i], to[i], in[i].numel(), in[i].dtype()});
  run(all);
  to.write();
}

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context& c) {
  sum(in, out, c, [&](const auto& all) { sum_over_ranks(*op.comm, all); });
}
void reduce_scatter(const op::ReduceScatter& op, Bufs in, Bufs out, Context& c) {
  sum(in, out, c, [&](const auto& all) { sum_to_owners(*op.comm, all, op.cuts); });
}
void all_gather_parts(const op::AllGatherParts& op, Bufs in, Bufs out, Context& c) {
  const size_t n = in.size() - op.copied.size();
  OnHost all(c, out);
  all.read(in);
  std::vector<RankTensor> w;
  for (size_t i = 0; i < n; ++i) w.push_back({all[i], out[i].numel(), size_of(out[i].dtype())});
  gather_from_owners(*op.comm, w, op.cuts);
  for (size_t k = 0; k < op.copied.size(); ++k)
    for (int64_t i = 0; i < out[n + k].numel(); ++i)
      static_cast<bf16*>(all[n + k])[i] = bf16(static_cast<const float*>(all[op.copied[k]])[i]);
  all.write();
}
TG_KERNEL(op::AllReduce, cuda, all_reduce);
TG_KERNEL(op::ReduceScatter, cuda, reduce_scatter);
TG_KERNEL(op::AllGatherParts, cuda, all_gather_parts);
}  // namespace
}  // namespace tg::cuda
