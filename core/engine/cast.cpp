// Conversions of dtype, and the bf16 copies of parameters.
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/mode.h>

#include <mutex>

namespace tg {
namespace {
// (copy, x): the copy, with the gradient of x.
struct Bf16Copy : ViewOp<Bf16Copy> {
  static constexpr auto kName = "bf16_copy";
  Layouts infer(Inputs in) const override {
    Layouts l{in[0].layout()};
    l[0].aliases_input = 0;
    return l;
  }
  Tensors vjp(const Vjp& v) const override { return {Tensor(), v.grad()}; }
};

std::mutex g_copies;  // threads may read a shared parameter first at once

bool unchanged(const Value& v, uint32_t then) {
  return !v.storage || v.storage->version == (then == detail::kUnset ? v.version : then);
}
Ref<Value> find_copy(const Value& v) {
  const bool valid = v.bf16_copy && unchanged(v, v.bf16_of) && unchanged(*v.bf16_copy, detail::kUnset);
  return valid ? v.bf16_copy : nullptr;
}
void set_copy(Value& v, Ref<Value> copy) {
  v.bf16_copy = std::move(copy);
  v.bf16_of = v.storage ? v.storage->version : detail::kUnset;
}
// A dry run must not change tensors from outside.
bool outlives_run(const Value& v) {
  return detail::running_dry() && v.storage &&
         &v.storage->allocator != &runtime_of(v.layout.device).allocator(v.layout.device.index);
}
}  // namespace

Layouts op::Cast::infer(Inputs in) const { return {Layout::contiguous(in[0].shape(), to, in[0].device())}; }
Tensors op::Cast::vjp(const Vjp& v) const { return {v.grad()}; }  // backward() converts it where needed

Ref<Value> detail::bf16_copy(Value& v) {
  const std::lock_guard lock(g_copies);
  return find_copy(v);
}
Ref<Value> detail::keep_bf16_copy(Value& v) {
  if (Ref<Value> copy = bf16_copy(v)) return copy;
  const NoGradScope off;
  const Tensor made = Tensor(Ref<Value>(&v)).to(DType::bf16);
  if (v.storage && !tracing()) evaluate({made});
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

Tensor parameter_as(const Tensor& x, DType to) {
  if (to != DType::bf16 || x.dtype() != DType::f32 || !x.requires_grad()) return x.to(to);
  const Ref<Value> now = detail::value_of(x);
  if ((now->producer && now->producer->tape()) || outlives_run(*now)) return x.to(to);
  detail::Trace* const trace = detail::tracing();
  const Tensor copy(trace ? trace->bf16_copy(x) : detail::keep_bf16_copy(*now));
  return emit1(stateless<Bf16Copy>(), {copy, x});
}
}  // namespace tg
