// Values that change per step, like a learning rate. An op that runs at once passes them by value. A recorded kernel
// reads device memory, which the recording writes before each launch, so that nothing is recorded again.
#pragma once
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/runtime/recording.h>

namespace tg::cuda {

// The address of n values in each launch of the recording, set by fill(op, to); null if the op runs at once.
template <class V, class Op, class F> const V* step_values(const Op& op, size_t n, F fill) {
  return static_cast<const V*>(recorded_values(op, n * sizeof(V), [fill](const tg::Op& now, std::byte* to) {
    fill(static_cast<const Op&>(now), reinterpret_cast<V*>(to));
  }));
}

template <class V> class StepValue {
 public:
  template <class Op, class F>
  StepValue(const Op& op, F of)
      : value_(of(op)), recorded_(step_values<V>(op, 1, [of](const Op& now, V* to) { *to = of(now); })) {}
  __device__ __forceinline__ V get() const { return recorded_ ? *recorded_ : value_; }

 private:
  V value_;
  const V* recorded_;
};

}  // namespace tg::cuda
