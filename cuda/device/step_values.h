// What an op's kernels read that changes from step to step: a learning rate, the state of a generator. Where the op
// runs at once it goes to them by value. A recorded kernel reads it from device memory, which the recording writes
// before each of its launches, so that nothing is recorded again. For optim_step.cu, dropout.cu and factories.cu.
#pragma once
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/runtime/recording.h>

namespace tg::cuda {

// n values for the kernels of an op: null if it runs at once, else where they are in each launch of the recording.
// fill(op, to) sets them from the op of a step.
template <class V, class Op, class F> const V* step_values(const Op& op, size_t n, F fill) {
  return static_cast<const V*>(recorded_values(op, n * sizeof(V), [fill](const tg::Op& now, std::byte* to) {
    fill(static_cast<const Op&>(now), reinterpret_cast<V*>(to));
  }));
}

// One value, as a parameter of a kernel.
template <class V> class StepValue {
 public:
  // of(op) is the value.
  template <class Op, class F>
  StepValue(const Op& op, F of)
      : value_(of(op)), recorded_(step_values<V>(op, 1, [of](const Op& now, V* to) { *to = of(now); })) {}
  __device__ __forceinline__ V get() const { return recorded_ ? *recorded_ : value_; }

 private:
  V value_;
  const V* recorded_;
};

}  // namespace tg::cuda
