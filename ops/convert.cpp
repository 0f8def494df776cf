#include <tapegrad/core/trace.h>
#include <tapegrad/ops/convert.h>

namespace tg {
Layouts Cast::infer(Inputs in) const { return {Layout::contiguous(in[0].shape(), to, in[0].device())}; }
Tensors Cast::vjp(const Vjp& v) const { return {v.grad().to(v.in_dtype(0))}; }

Tensor Tensor::to(DType t) const { return dtype() == t ? *this : emit1(make<Cast>(t), {*this}); }
Tensor Tensor::contiguous() const { return is_contiguous() ? *this : emit1(make<Cast>(dtype()), {*this}); }
Tensor Tensor::to(Device d) const {
  if (d == device()) return *this;
  runtime_of(d);
  TG_CHECK(!requires_grad() || !grad_enabled(), state,
           "[to] {} is tracked, and copies between devices are not recorded. Call detach() first, or move leaves.",
           *this);
  detail::host_reads(*this);  // as a copy to the host does
  const Tensor source = contiguous();
  evaluate({source});
  const Layout& l = source.layout();
  Tensor copy = empty(Layout::contiguous(shape(), dtype(), d));
  const size_t bytes = l.bytes();
  if (!bytes) return copy;
  const std::byte* from = source.value()->storage->data + l.offset * int64_t(size_of(l.dtype));
  std::byte* to = copy.value()->storage->data;
  if (device().backend == Backend::cpu) {
    runtime_of(d).copy_from_host(d.index, to, from, bytes);
  } else if (d.backend == Backend::cpu) {
    runtime_of(device()).copy_to_host(device().index, to, from, bytes);
  } else {
    std::vector<std::byte> host(bytes);
    runtime_of(device()).copy_to_host(device().index, host.data(), from, bytes);
    runtime_of(d).copy_from_host(d.index, to, host.data(), bytes);
  }
  return copy;
}
void Tensor::copy_to_host(void* to_host, DType t) const {
  detail::host_reads(*this);
  const Tensor source = detach().to(t).contiguous();
  evaluate({source});
  const Layout& l = source.layout();
  if (!l.numel()) return;
  const std::byte* from = source.value()->storage->data + l.offset * int64_t(size_of(t));
  runtime_of(device()).copy_to_host(device().index, to_host, from, l.bytes());
}
}  // namespace tg
