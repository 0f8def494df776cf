// Any layout to contiguous, an element per thread. Conversions of training have a kernel each; others go through i64
// or f64, which hold every value.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/cuda/device/copy.h>

#include <limits>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

template <class T> __device__ __forceinline__ T load_as(DType d, const std::byte* p, int64_t at) {
  switch (d) {
#define TG_X(U, d, name) \
  case DType::d: return T(widen(reinterpret_cast<const U*>(p)[at]));
    TG_DTYPES(TG_X)
#undef TG_X
  }
  return T(0);
}
// Floats to integers truncate and saturate, NaN becomes 0. Integers wrap.
template <class To, class W> __device__ __forceinline__ To convert(W x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != W(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<W>) {
    constexpr To lo = std::numeric_limits<To>::min(), hi = std::numeric_limits<To>::max();
    return x != x ? To(0) : x <= W(lo) ? lo : x >= W(hi) ? hi : To(x);
  } else {
    return narrow<To>(compute_t<To>(x));
  }
}
template <class W> __device__ __forceinline__ void store_as(DType d, std::byte* p, int64_t at, W x) {
  switch (d) {
#define TG_X(To, d, name) \
  case DType::d: reinterpret_cast<To*>(p)[at] = convert<To>(x); break;
    TG_DTYPES(TG_X)
#undef TG_X
  }
}
template <class W>
__global__ void cast_through_wide(DType from, const std::byte* x, DType to, std::byte* y, Strided<1> walk, int64_t n) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[1];
    walk.offsets(*i, at);
    store_as<W>(to, y, *i, load_as<W>(from, x, at[0]));
  }
}
template <class From, class To> __global__ void cast_direct(const From* x, To* y, Strided<1> walk, int64_t n) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[1];
    walk.offsets(*i, at);
    y[*i] = narrow<To>(compute_t<To>(widen(x[at[0]])));
  }
}
template <class From, class To> __global__ void cast_dense(const From* x, To* y, int64_t n) {
  constexpr int kWide = int(16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To)));
  for (GridLoop i((n + kWide - 1) / kWide); i; ++i) {
    const int64_t at = *i * kWide;
    if (at + kWide > n) {
#pragma unroll 1
      for (int64_t k = at; k < n; ++k) y[k] = narrow<To>(compute_t<To>(widen(x[k])));
      continue;
    }
    const auto v = load16<kWide>(x + at);
    Vec<To, kWide> r;
#pragma unroll
    for (int k = 0; k < kWide; ++k) r.x[k] = narrow<To>(compute_t<To>(widen(v.x[k])));
    store16(y + at, r);
  }
}

template <class From, class To> void run_direct(Context& c, const Buf& in, const Buf& out) {
  const int64_t n = out.numel();
  const Strided<1> walk(in.shape(), {in.strides()});
  if (walk.contiguous() && aligned16(in.data<From>()) && aligned16(out.data<To>()))
    launch(c, cast_dense<From, To>, blocks_for(c, n, kThreads * kVec<From>), kThreads, 0, in.data<From>(),
           out.data<To>(), n);
  else
    launch(c, cast_direct<From, To>, blocks_for(c, n, kThreads), kThreads, 0, in.data<From>(), out.data<To>(), walk, n);
}
void cast(const op::Cast&, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &y = out[0];
  const int64_t n = y.numel();
  if (n == 0) return;
  const DType from = x.dtype(), to = y.dtype();
  if (from == to) return copy_contiguous(c, x, first_element(y));
  if (from == DType::f32 && to == DType::bf16) return run_direct<float, bf16>(c, x, y);
  if (from == DType::bf16 && to == DType::f32) return run_direct<bf16, float>(c, x, y);
  if (from == DType::f32 && to == DType::f64) return run_direct<float, double>(c, x, y);
  if (from == DType::f64 && to == DType::f32) return run_direct<double, float>(c, x, y);
  const Strided<1> walk(x.shape(), {x.strides()});
  launch(c, is_float(from) ? cast_through_wide<double> : cast_through_wide<int64_t>, blocks_for(c, n, kThreads),
         kThreads, 0, from, static_cast<const std::byte*>(first_element(x)), to, first_element(y), walk, n);
}
TG_STRIDED_KERNEL(op::Cast, cuda, cast);
}  // namespace

void copy_contiguous(const Context& c, const Buf& from, void* to) {
  const int64_t n = from.numel();
  if (n == 0) return;
  const Strided<1> walk(from.shape(), {from.strides()});
  const std::byte* x = first_element(from);
  if (walk.contiguous()) {
    check(cudaMemcpyAsync(to, x, from.layout->bytes(), cudaMemcpyDeviceToDevice, stream_of(c.device.index)), c.op,
          "a copy on the device");
    return;
  }
  const Layout dense = Layout::contiguous(from.shape(), from.dtype(), c.device);
  const Region all{from.shape(), x, from.strides(), static_cast<std::byte*>(to), dense.strides};
  copy_regions(c, size_of(from.dtype()), std::span(&all, 1));
}
}  // namespace tg::cuda
