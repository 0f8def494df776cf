/// @file
/// cast_parameter(): parameters in the dtype of computation.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

namespace detail {
/// x.to(dtype) for parameters. An f32 leaf that requires a gradient gets one bf16 copy of 2 bytes per element, valid
/// for its current value; adamw_step() updates both. Calls return views of it: do not write to them. Its gradient is
/// bf16, as with to(), which converts everything else.
Tensor cast_parameter(const Tensor& x, DType);

// Makes a missing or stale copy, immediately if v has elements.
Ref<Value> keep_bf16_copy(Value& v);
// An op that overwrites a parameter moves its copy (or null) from the old value to the new one.
Ref<Value> take_bf16_copy(const Tensor& x);
void give_bf16_copy(Value&, Ref<Value> copy);
}  // namespace detail

}  // namespace tg
