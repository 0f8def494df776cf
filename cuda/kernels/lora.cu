// Kernel of ops/lora.h: a block per few rows, whose x a stays in shared memory between the two products. Every sum has
// one order: warps take slices of the inner size, and their shares are added by number.
#include <tapegrad/core/check.h>
#include <tapegrad/ops/lora.h>

#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kRows = 4, kCols = 8;  // of x a, in the registers of a thread

struct Sizes {
  int64_t rows, in, r, out;
};

// One warp's share of columns [first, first + kCols) of x a, for kRows rows, in every lane.
template <class T>
__device__ __forceinline__ void add_share(const Sizes& s, int64_t row, int64_t first, int64_t begin, int64_t end,
                                          const T* x, const T* a, compute_t<T> (&sum)[kRows][kCols]) {
  using C = compute_t<T>;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kCols; ++j) sum[i][j] = 0;
  for (int64_t k = begin + threadIdx.x % kWarp; k < end; k += kWarp) {
    C left[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) left[i] = row + i < s.rows ? widen(x[(row + i) * s.in + k]) : C(0);
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const C right = first + j < s.r ? widen(a[k * s.r + first + j]) : C(0);
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i][j] += left[i] * right;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kCols; ++j) sum[i][j] = warp_all<SumOp>(sum[i][j]);
}

// (x a) of the block's rows: rounded to h, and times scale to inner (kRows, r). Ends synchronised.
template <class T>
__device__ __forceinline__ void first_product(const Sizes& s, compute_t<T> scale, int64_t row, const T* x, const T* a,
                                              T* h, compute_t<T>* inner) {
  using C = compute_t<T>;
  __shared__ __align__(16) C share[kWarps][kRows * kCols];
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t slice = (s.in + kWarps - 1) / kWarps;
  const int64_t begin = std::min(s.in, warp * slice), end = std::min(s.in, begin + slice);
  for (int64_t first = 0; first < s.r; first += kCols) {
    C sum[kRows][kCols];
    add_share(s, row, first, begin, end, x, a, sum);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kCols; ++j)
        if (lane == i * kCols + j) share[warp][i * kCols + j] = sum[i][j];
    __syncthreads();
    if (warp == 0) {
      C total = 0;
      for (int w = 0; w < kWarps; ++w) total += share[w][lane];
      const int i = lane / kCols, j = lane % kCols;
      if (first + j < s.r) {
        const T rounded = narrow<T>(total);
        if (row + i < s.rows) h[(row + i) * s.r + first + j] = rounded;
        inner[i * s.r + first + j] = widen(rounded) * scale;
      }
    }
    __syncthreads();
  }
}

// Block b: rows b kRows and after it. base may be y, or null.
template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_rows(Sizes s, compute_t<T> scale, const T* x, const T* a, const T* b, const T* base, T* y, T* h) {
  using C = compute_t<T>;
  C* const inner = dynamic_shared<C>();  // (kRows, r)
  for (int64_t row = blockIdx.x * int64_t(kRows); row < s.rows; row += int64_t(gridDim.x) * kRows) {
    first_product(s, scale, row, x, a, h, inner);  // writes inner behind a barrier: the loop needs none of its own
    for (int64_t n = threadIdx.x; n < s.out; n += kThreads) {
      C sum[kRows] = {};
      for (int64_t t = 0; t < s.r; ++t) {
        const C right = widen(b[t * s.out + n]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) sum[i] += inner[i * s.r + t] * right;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i >= s.rows) continue;
        const int64_t at = (row + i) * s.out + n;
        y[at] = narrow<T>(base ? widen(base[at]) + sum[i] : sum[i]);
      }
    }
  }
}

void lora(const op::Lora& op, Bufs in, Bufs out, Context& c) {
  const Sizes s{out[1].size(0), in[1].size(0), in[1].size(1), in[2].size(1)};
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Dense<T> x(c, in[0]), a(c, in[1]), b(c, in[2]);
    std::optional<Dense<T>> base;
    if (in.size() > 3) base.emplace(c, in[3]);
    const size_t shared = size_t(kRows * s.r) * sizeof(C), most = properties(c.device.index).shared_per_block;
    TG_CHECK(
        shared + sizeof(C) * kThreads <= most, value,
        "[lora] the rank is {}: {} rows of x a take {} bytes of the {} that a block may share. Use a lower rank, or "
        "two products.",
        s.r, kRows, shared, most);
    launch(c, lora_rows<T>, blocks_for(c, s.rows, kRows), kThreads, shared, s, C(op.scale), (const T*)(x),
           (const T*)(a), (const T*)(b), base ? (const T*)(*base) : nullptr, out[0].data<T>(), out[1].data<T>());
  });
}
TG_STRIDED_KERNEL(op::Lora, cuda, lora);
}  // namespace
}  // namespace tg::cuda
