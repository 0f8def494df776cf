// Kernels of ops/reduce.h: what is joined, and how. The walk over the elements is in reduce.h.
#include <tapegrad/ops/reduce.h>

#include <tapegrad/cuda/reduce.h>

namespace tg::cuda {
namespace {
// Integers add up in 64 bits, 16-bit floats in f32.
template <class T> using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, compute_t<T>>;

template <class T> struct Add {
  using A = Acc<T>;
  T* y;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(compute_t<T> x, int64_t) const { return A(x); }
  __device__ __forceinline__ void store(int64_t out, A total) const { y[out] = narrow<T>(compute_t<T>(total)); }
};

// The kept and the reduced dimensions of x, in their order.
Reduced split(uint8_t dims, const Buf& x) {
  Shape shape[2];
  Strides strides[2];
  int64_t count[2] = {1, 1};
  for (size_t d = 0; d < x.shape().size(); ++d) {
    const size_t to = dims >> d & 1;
    shape[to].push_back(x.size(d)), strides[to].push_back(x.strides()[d]), count[to] *= x.size(d);
  }
  return {{shape[0], {strides[0]}}, {shape[1], {strides[1]}}, count[0], count[1]};
}
// The dtypes of check::number().
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_computed(d, f); }

void sum(const Sum& op, Bufs in, Bufs out, Context& c) {
  visit_number(out[0].dtype(),
               [&]<class T>() { reduce(c, Add<T>{out[0].data<T>()}, in[0].data<T>(), split(op.dims, in[0])); });
}
TG_KERNEL(Sum, cuda, sum);
}  // namespace
}  // namespace tg::cuda
