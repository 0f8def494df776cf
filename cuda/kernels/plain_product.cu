// A 64 x 64 tile per 256 threads, 4 x 4 elements each. One order of sums: bits depend on row and column alone.
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/gemm/plain_product.h>

namespace tg::cuda {
namespace {
constexpr int kTile = 64, kDepth = 16, kSide = 16, kThreads = kSide * kSide, kEach = kTile / kSide;

template <class T> using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, compute_t<T>>;

// Lines [first, first + kTile) and [k, k + kDepth), k-major; zeros beyond. Adjacent threads read along the unit step.
template <class T>
__device__ __forceinline__ void load_tile(Sum<T> (&tile)[kDepth][kTile + 1], const T* from, int64_t line_step,
                                          int64_t step, int64_t first, int64_t lines, int64_t k, int64_t depth) {
  for (int i = int(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int line = step == 1 ? i / kDepth : i % kTile, at = step == 1 ? i % kDepth : i / kTile;
    const bool inside = first + line < lines && k + at < depth;
    tile[at][line] = inside ? Sum<T>(widen(from[(first + line) * line_step + (k + at) * step])) : Sum<T>(0);
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) multiply_plainly(Gemm g, int64_t ldd, bool accumulate) {
  __shared__ Sum<In> a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  const int64_t across = (g.n + kTile - 1) / kTile, down = (g.m + kTile - 1) / kTile;
  const int row = int(threadIdx.x) / kSide, column = int(threadIdx.x) % kSide;
  for (int64_t t = blockIdx.x; t < across * down * g.batch; t += gridDim.x) {
    const int64_t matrix = t / (across * down), in_matrix = t - matrix * across * down;
    const int64_t top = in_matrix / across * kTile, left = in_matrix % across * kTile;
    const In* const from_a = static_cast<const In*>(g.a.data) + matrix * g.a.stride;
    const In* const from_b = static_cast<const In*>(g.b.data) + matrix * g.b.stride;
    Sum<In> sums[kEach][kEach] = {};
    for (int64_t k = 0; k < g.k; k += kDepth) {
      __syncthreads();  // the last tiles were read
      load_tile<In>(a, from_a, g.a.transposed ? 1 : g.a.ld, g.a.transposed ? g.a.ld : 1, top, g.m, k, g.k);
      load_tile<In>(b, from_b, g.b.transposed ? g.b.ld : 1, g.b.transposed ? 1 : g.b.ld, left, g.n, k, g.k);
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kDepth; ++s)
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] += a[s][row + i * kSide] * b[s][column + j * kSide];
    }
    Out* const out = static_cast<Out*>(g.out) + matrix * g.out_stride;
    const Out* const bias = static_cast<const Out*>(g.bias);
    for (int i = 0; i < kEach; ++i)
      for (int j = 0; j < kEach; ++j) {
        const int64_t r = top + row + i * kSide, c = left + column + j * kSide;
        if (r >= g.m || c >= g.n) continue;
        using Value = compute_t<Out>;
        auto y = Value(sums[i][j]);
        if (bias) y += Value(widen(bias[c]));
        if (accumulate) y += Value(widen(out[r * ldd + c]));
        out[r * ldd + c] = narrow<Out>(y);
      }
  }
}
template <class T> __global__ void __launch_bounds__(kThreads) repeat_row(Gemm g, int64_t ldd) {
  for (GridLoop i(g.batch * g.m * g.n); i; ++i) {
    const int64_t row = *i / g.n, column = *i - row * g.n, matrix = row / g.m;
    static_cast<T*>(g.out)[matrix * g.out_stride + (row - matrix * g.m) * ldd + column] =
        static_cast<const T*>(g.bias)[column];
  }
}
}  // namespace

void fill_rows(const Context& c, const Gemm& g, int64_t ldd) {
  kernel::visit_float(g.dtype, [&]<class T>() {
    launch(c, repeat_row<T>, blocks_for(c, g.batch * g.m * g.n, kThreads), kThreads, 0, g, ldd);
  });
}
void plain_product(const Context& c, const Gemm& g, int64_t ldd, bool accumulate) {
  const int64_t tiles = (g.m + kTile - 1) / kTile * ((g.n + kTile - 1) / kTile) * g.batch;
  const auto run = [&]<class In, class Out>() {
    launch(c, multiply_plainly<In, Out>, blocks_for(c, tiles, 1), kThreads, 0, g, ldd, accumulate);
  };
  if (g.dtype == DType::i8) return run.template operator()<int8_t, int32_t>();
  kernel::visit_float(g.dtype, [&]<class T>() { run.template operator()<T, T>(); });
}

}  // namespace tg::cuda
