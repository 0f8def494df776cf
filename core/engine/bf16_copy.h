/// @file
/// cast_parameter(): parameters in the dtype of computation.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

/// x.to(dtype) for model parameters. An f32 leaf that requires a gradient gets one bf16 copy of 2 bytes per element. It
/// is valid while the leaf has this value, and adamw_step() updates it with the leaf. All calls return views of it: do
/// not write to them. to() converts everything else. The gradient of the leaf is bf16, as that of to().
Tensor cast_parameter(const Tensor& x, DType);

namespace detail {
// Makes the copy if missing or stale; at once if v has elements.
Ref<Value> keep_bf16_copy(Value& v);
// An op that overwrites a parameter overwrites its copy too: it takes the copy, or null, from the old value, and gives
// it to the new value.
Ref<Value> take_bf16_copy(const Tensor& x);
void give_bf16_copy(Value&, Ref<Value> copy);
}  // namespace detail

}  // namespace tg
