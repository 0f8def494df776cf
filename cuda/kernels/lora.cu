// A block per row, or per kMostRows. x a stays in shared memory. Fixed order of sums: warps split the inner size;
// partial sums are reduced by warp number.
#include <tapegrad/core/check.h>
#include <tapegrad/ops/lora.h>

#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kMostRows = 4, kCols = 8;  // tile of x a in registers

struct Sizes {
  int64_t rows, in, r, out;
};

// Lane l gets sum l % N. Each step halves the count; the order is the same for any N.
template <int N, class C> __device__ __forceinline__ C sums_to_lanes(C (&v)[N]) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
#pragma unroll
    for (int k = 0; k < (d < N ? d : N); ++k) {
      if (d >= N) {
        v[k] += __shfl_xor_sync(~0u, v[k], d);
      } else {
        const bool upper = int(threadIdx.x) & d;
        const C kept = upper ? v[k + d] : v[k], given = upper ? v[k] : v[k + d];
        v[k] = kept + __shfl_xor_sync(~0u, given, d);
      }
    }
  }
  return v[0];
}
// Lane l gets row l / kCols of the warp's partial sums of x a.
template <class T, int kRows, bool kVectors>
__device__ __forceinline__ compute_t<T> share_of(const Sizes& s, int64_t row, int64_t first, int64_t begin, int64_t end,
                                                 const T* x, const T* a) {
  using C = compute_t<T>;
  C sum[kRows * kCols] = {};
#pragma unroll 2
  for (int64_t k = begin + threadIdx.x % kWarp; k < end; k += kWarp) {
    Vec<T, kCols> right;
    if constexpr (kVectors) {
      right = load16<kCols>(a + k * s.r + first);
    } else {
#pragma unroll
      for (int j = 0; j < kCols; ++j) right.x[j] = first + j < s.r ? a[k * s.r + first + j] : narrow<T>(C(0));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const C left = row + i < s.rows ? widen(x[(row + i) * s.in + k]) : C(0);
#pragma unroll
      for (int j = 0; j < kCols; ++j) sum[i * kCols + j] += left * widen(right.x[j]);
    }
  }
  return sums_to_lanes(sum);
}

// x a (kRows, r), rounded, to h; times scale to inner. Ends with a barrier.
template <class T, int kRows, bool kVectors>
__device__ __forceinline__ void first_product(const Sizes& s, compute_t<T> scale, int64_t row, const T* x, const T* a,
                                              T* h, compute_t<T>* inner) {
  using C = compute_t<T>;
  constexpr int kSums = kRows * kCols;
  __shared__ __align__(16) C share[kWarps][kSums];
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t slice = (s.in + kWarps - 1) / kWarps;
  const int64_t begin = std::min(s.in, warp * slice), end = std::min(s.in, begin + slice);
  for (int64_t first = 0; first < s.r; first += kCols) {
    const C sum = share_of<T, kRows, kVectors>(s, row, first, begin, end, x, a);
    if (lane < kSums) share[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && lane < kSums) {
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

// Rows from b kRows on. base may alias y, or be null.
template <class T, int kRows, bool kVectors>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 4 : 2)
    lora_rows(Sizes s, compute_t<T> scale, const T* x, const T* a, const T* b, const T* base, T* y, T* h) {
  using C = compute_t<T>;
  C* const inner = dynamic_shared<C>();  // (kRows, r)
  for (int64_t row = blockIdx.x * int64_t(kRows); row < s.rows; row += int64_t(gridDim.x) * kRows) {
    first_product<T, kRows, kVectors>(s, scale, row, x, a, h, inner);  // starts with a barrier before writing inner
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
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Dense<T> x(c, in[0]), a(c, in[1]), b(c, in[2]);
    std::optional<Dense<T>> base;
    if (in.size() > 3) base.emplace(c, in[3]);
    // Shared memory: x a and the warps' partial sums.
    const auto bytes = [&](int rows) { return size_t(rows) * (size_t(s.r) + kWarps * kCols) * sizeof(C); };
    TG_CHECK(has_shared(c, bytes(1)), value,
             "[lora] the rank is {}: a row of x a takes {} bytes, and a block has {} bytes of shared memory. Use a "
             "lower rank, or two matmuls.",
             s.r, bytes(1), properties(c.device.index).shared_per_block);
    const auto run = [&]<int kRows, bool kVectors>() {
      launch(c, lora_rows<T, kRows, kVectors>, blocks_for(c, s.rows, kRows), kThreads, size_t(kRows * s.r) * sizeof(C),
             s, C(op.scale), (const T*)(x), (const T*)(a), (const T*)(b), base ? (const T*)(*base) : nullptr,
             out[0].data<T>(), out[1].data<T>());
    };
    const bool vectors = s.r % kCols == 0 && aligned16(a);
    const bool idle = s.rows < kMostRows * properties(c.device.index).multiprocessors;  // would idle SMs
    if (idle || !has_shared(c, bytes(kMostRows)))
      vectors ? run.template operator()<1, true>() : run.template operator()<1, false>();
    else
      vectors ? run.template operator()<kMostRows, true>() : run.template operator()<kMostRows, false>();
  });
}
TG_STRIDED_KERNEL(op::Lora, cuda, lora);
}  // namespace
}  // namespace tg::cuda
