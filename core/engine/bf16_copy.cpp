#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>

#include <mutex>

namespace tg {
namespace {
using namespace detail;
// (copy, x): the copy, with the gradient of x.
struct Bf16Copy : ViewOp<Bf16Copy> {
  static constexpr auto kName = "bf16_copy";
  Layouts infer(Inputs in) const override { return {in[0].layout().view_of(0)}; }
  Tensors vjp(const Vjp& v) const override { return {Tensor(), v.grad()}; }
};

std::mutex g_copies;  // threads may read a shared parameter at once

bool unchanged(const Value& v, uint32_t then) {
  return !v.storage || v.storage->version == (then == kUnset ? v.version : then);
}
// The functions below need the lock.
Ref<Value> find_copy(const Value& v) {
  const bool valid = v.bf16_copy && unchanged(v, v.bf16_of) && unchanged(*v.bf16_copy, kUnset);
  return valid ? v.bf16_copy : nullptr;
}
void set_copy(Value& v, Ref<Value> copy) {
  v.bf16_copy = std::move(copy);
  v.bf16_of = v.storage ? v.storage->version : kUnset;
}
// Dry runs must not change outside tensors.
bool outlives_run(const Value& v) {
  return running_dry() && v.storage &&
         &v.storage->allocator != &detail::runtime_of(v.layout.device).allocator(v.layout.device.index);
}
// Captures the copy of an outside variable.
Ref<Value> copy_in_trace(Trace& trace, const Tensor& x) {
  const Ref<Value> seen = trace.reads(x);
  if (std::lock_guard lock(g_copies); Ref<Value> copy = find_copy(*seen)) return copy;
  const Trace::CapturedVariable* const of = trace.captured(x, *seen);
  if (!of) {
    trace.copied.push_back(seen);
    return keep_bf16_copy(*seen);
  }
  const ScopedValue<Trace*> outside(t_trace, nullptr);
  Ref<Value> before = keep_bf16_copy(*of->before);
  if (!before->storage) eval({Tensor(before)});
  Ref<Value> during = trace.hold({of->variable, before, make_ref<Value>(before->layout, before->storage), true});
  give_bf16_copy(*seen, during);
  return during;
}
}  // namespace

Ref<Value> detail::keep_bf16_copy(Value& v) {
  {
    const std::lock_guard lock(g_copies);
    if (Ref<Value> copy = find_copy(v)) return copy;
  }
  const NoGradScope off;
  const Tensor made = Tensor(Ref<Value>(&v)).to(DType::bf16);
  if (v.storage && !tracing()) eval({made});
  const std::lock_guard lock(g_copies);
  if (Ref<Value> copy = find_copy(v)) return copy;  // another thread made it
  set_copy(v, made.value());
  return made.value();
}
Ref<Value> detail::take_bf16_copy(const Tensor& x) {
  const Ref<Value> v = tracing() ? tracing()->reads(x) : value_of(x);
  const std::lock_guard lock(g_copies);
  Ref<Value> copy = find_copy(*v);
  v->bf16_copy = nullptr;
  return copy;
}
void detail::give_bf16_copy(Value& v, Ref<Value> copy) {
  const std::lock_guard lock(g_copies);
  set_copy(v, std::move(copy));
}

Tensor detail::cast_parameter(const Tensor& x, DType to) {
  if (to != DType::bf16 || x.dtype() != DType::f32 || !x.requires_grad()) return x.to(to);
  const Ref<Value> now = value_of(x);
  if ((now->tracked && now->producer->tape()) || outlives_run(*now)) return x.to(to);
  const Tensor copy(tracing() ? copy_in_trace(*tracing(), x) : keep_bf16_copy(*now));
  return emit1(stateless<Bf16Copy>(), {copy, x});
}
}  // namespace tg
