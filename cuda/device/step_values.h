// Values that change per step, like a learning rate: by value in eager ops; recorded kernels read device memory written
// before each launch.
#pragma once
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/runtime/recording.h>

namespace tg::cuda {

// n values, filled by fill(op, to) before each launch of the recording; null for an eager op.
template <class V, class Op, class F> const V* step_values(const Op& op, size_t n, F fill) {
  return static_cast<const V*>(recorded_values(op, n * sizeof(V), [fill](const tg::Op& now, std::byte* to) {
    fill(static_cast<const Op&>(now), reinterpret_cast<V*>(to));
  }));
}

template <class V> class StepValue {
 public:
  StepValue() = default;
  template <class Op, class F>
  StepValue(const Op& op, F of)
      : value_(of(op)), recorded_(step_values<V>(op, 1, [of](const Op& now, V* to) { *to = of(now); })) {}
  __device__ __forceinline__ V get() const { return recorded_ ? *recorded_ : value_; }

 private:
  V value_{};
  const V* recorded_ = nullptr;
};

}  // namespace tg::cuda
