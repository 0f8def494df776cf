/// @file
/// Loops of CUDA kernels for .cu files: over elements, and over rows of the last dimension. Other kernels are
/// `__global__` functions, launched by launch().
///
/// - `launch(context, kernel, grid, block, shared_bytes, arguments...)`: in the context's stream; errors name the op
/// - `blocks_for(context, n, per_block)`: a grid that fills the GPU; `for (GridLoop i(n); i; ++i)` then visits each *i
/// - `Dense<T> x(context, in[0])`: an input of any strides as contiguous data, for TG_STRIDED_KERNEL
/// - `widen(x)`, `narrow<T>(x)`: to the compute type (float for bf16), and back
/// - `block_all<SumOp, kRowThreads>(x, 0.f)`: the sum over a block's threads, in a fixed order, in all of them
///
/// device/device.h has the rules for kernels, which the emulator checks.
#pragma once
#include <tapegrad/cuda/device/map.h>
#include <tapegrad/cuda/device/row_loop.h>

namespace tg::cuda {
namespace {
template <size_t, class T> using Repeated = T;
template <class G> struct Call {
  template <class... X> __device__ __forceinline__ static auto f(const G& g, X... x) { return g(x...); }
};

/// out[i] = f(in[i]...): `for_each(context, {in[0]}, out[0], Scaled{2.0})` with `struct Scaled { double by; template
/// <class T> __device__ T operator()(T x) const { return T(by) * x; } };`, copied to the device. All have one dtype:
/// f64, f32 or bf16. f takes and returns double for f64, else float; bf16 results are rounded once. Inputs broadcast to
/// out, with any strides. out is contiguous and may alias an input. An Error if dtypes or shapes do not fit.
template <size_t N, class F> void for_each(const Context& c, const Buf (&in)[N], const Buf& out, F f) {
  tg::detail::check_elements(in, out);
  visit_computed(out.dtype(), [&]<class T>() {
    [&]<size_t... K>(std::index_sequence<K...>) {
      map<Call<F>, T, Repeated<K, T>...>(c, in, out, f);
    }(std::make_index_sequence<N>());
  });
}

/// Threads per block of for_each_row().
constexpr int kRowThreads = 256;
template <class T> struct InputRows {
  const T* x;
  int64_t n;
};
template <class F, class T, class... X>
__global__ void __launch_bounds__(kRowThreads) row_kernel(F f, int64_t rows, int64_t n, T* y, InputRows<X>... in) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    f(n, y + r * n, in.x + r * in.n...);
    __syncthreads();  // shared memory has been read
  }
}
/// f(n, y, x...) for each row y of out (n elements) and row x of each input, by all kRowThreads threads of a block;
/// `for_row<kRowThreads>(x, n, [&](int64_t j, T v) {...})` gives each element of a row to one of them. f: an object
/// with `template <class T> __device__ void operator()(int64_t n, T* y, const T* x) const`, copied to the device. All
/// have one dtype T (f64, f32 or bf16) and the same number of rows. Input rows may have other lengths; they are
/// contiguous for any strides of the inputs. An Error if dtypes or shapes do not fit.
template <size_t N, class F> void for_each_row(const Context& c, const Buf (&in)[N], const Buf& out, F f) {
  tg::detail::check_rows(in, out);
  const int64_t n = out.shape().back();
  if (out.numel() == 0) return;
  const int64_t rows = out.numel() / n;
  kernel::visit_float(out.dtype(), [&]<class T>() {
    [&]<size_t... K>(std::index_sequence<K...>) {
      const Dense<T> x[] = {Dense<T>(c, in[K])...};
      launch(c, row_kernel<F, T, Repeated<K, T>...>, blocks_for(c, rows, 1), kRowThreads, 0, f, rows, n, out.data<T>(),
             InputRows<T>{x[K], in[K].shape().back()}...);
    }(std::make_index_sequence<N>());
  });
}

}  // namespace
}  // namespace tg::cuda
