// A block of 4 warps: q rows [q0, q0 + kQueries) of head h, all tiles of keys. V loads during Q K^T, the next K during
// P V.
#include <tapegrad/cuda/attention/attention_mma.h>

namespace tg::cuda {
namespace {
template <int D, bool kDrops> struct Tile {
  static constexpr int kTall = 2, N = D <= (kDrops ? 32 : 96) ? 8 : 4;  // more exceed the registers
  static constexpr int kOwn = kTall * 16;                               // rows per warp
  static constexpr int kQueries = kWarps * kOwn, kKeys = N * 8;
  static constexpr size_t kShared = sizeof(bf16) * (kQueries + 2 * kKeys) * kStep<D>;
  static constexpr int kCtas = 2;
  static_assert(kShared <= kLeastShared && kCtas * (kShared + kSharedOfBlock) <= kSharedOfSm);
};

// A lane has two rows of each 16-row tile, 8 apart. step(): s = 2^(scale (s - max)), scale > 0; o and sum are rescaled.
// `sum` covers the lane's columns.
template <int kTall, int N, int O> struct Softmax {
  float max[kTall][2], sum[kTall][2];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) max[m][i] = -std::numeric_limits<float>::infinity(), sum[m][i] = 0;
  }
  __device__ __forceinline__ void step(float (&s)[kTall][N][4], float scale, float (&o)[kTall][O][4]) {
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float next = max[m][i];  // fmaxf skips NaN
#pragma unroll
        for (int n = 0; n < N; ++n) next = fmaxf(next, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
        next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
        next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
        const float factor = exp2_approx((max[m][i] - next) * scale), shift = next * -scale;
        max[m][i] = next;
        sum[m][i] *= factor;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            s[m][n][e] = exp2_approx(s[m][n][e] * scale + shift);
            sum[m][i] += s[m][n][e];
          }
#pragma unroll
        for (int n = 0; n < O; ++n) o[m][n][2 * i] *= factor, o[m][n][2 * i + 1] *= factor;
      }
  }
};

template <int D, bool kDrops>
__global__ __launch_bounds__(kThreads, Tile<D, kDrops>::kCtas) void attention_mma_forward(AttentionArgs<bf16> a) {
  using S = Tile<D, kDrops>;
  const AttentionSizes& z = a.z;
  bf16 *queries = dynamic_shared<bf16>(), *keys = queries + S::kQueries * kStep<D>,
       *values = keys + S::kKeys * kStep<D>;
  const HeadBlock at(z.batch, z.heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t blocks = (z.tq + S::kQueries - 1) / S::kQueries;
  const int64_t q0 = (blocks - 1 - at.i) * S::kQueries;
  const int64_t end = z.seen(span, min(q0 + S::kQueries, z.tq) - 1);
  const int warp = int(threadIdx.x) / 32;
  const int64_t row0 = q0 + warp * S::kOwn, warp_end = row0 < z.tq ? z.seen(span, min(row0 + S::kOwn, z.tq) - 1) : 0;
  const auto k = a.k.at(at.b, at.h / z.group()), v = a.v.at(at.b, at.h / z.group());
  const float scale = float(z.scale * kLog2e);
  bf16* own = queries + warp * S::kOwn * kStep<D>;
  load_tile<S::kQueries, D>(queries, a.q.at(at.b, at.h), q0, z.tq, z.hs);
  load_tile<S::kKeys, D>(keys, k, 0, end, z.hs);
  cp_async_commit();
  float o[S::kTall][D / 8][4];
  clear(o);
  Softmax<S::kTall, S::N, D / 8> softmax;
  const HeadMask<kDrops, float> mask(a.dropout, at.b * z.heads + at.h, span.start);
  for (int64_t k0 = 0; k0 < end; k0 += S::kKeys) {
    const bool busy = k0 < warp_end;
    float s[S::kTall][S::N][4];
    cp_async_wait<0>();
    __syncthreads();  // K has arrived; no thread reads the last V
    load_tile<S::kKeys, D>(values, v, k0, end, z.hs);
    cp_async_commit();
    if (busy) {
      multiply_rows<D>(s, own, keys);
      if (k0 + S::kKeys > z.seen(span, row0)) mask_rows(s, -std::numeric_limits<float>::infinity(), z, span, row0, k0);
      softmax.step(s, scale, o);
      drop_rows(s, mask, row0, k0);
    }
    cp_async_wait<0>();
    __syncthreads();  // V has arrived; no thread reads K
    if (k0 + S::kKeys < end) load_tile<S::kKeys, D>(keys, k, k0 + S::kKeys, end, z.hs);
    cp_async_commit();
    if (busy) add_weighted<D>(o, s, values);
  }
  if (end == 0) {  // queries may be in flight
    cp_async_wait<0>();
    __syncthreads();
  }
  float inverse[S::kTall][2];
#pragma unroll
  for (int m = 0; m < S::kTall; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = softmax.sum[m][i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[m][i] = end > 0 ? 1 / sum : 0;
      const int64_t row = row0 + m * 16 + i * 8 + lane_row();
      if (lane_column() == 0 && row < z.tq)
        a.lse[(at.b * z.heads + at.h) * z.tq + row] = (softmax.max[m][i] * scale + log2f(sum)) * float(kLn2);
    }
  store_rows<D>(a.y.at(at.b, at.h), o, inverse, own, row0, z.tq, z.hs);
}
}  // namespace

void attention_mma(const Context& c, const AttentionArgs<bf16>& a) {
  visit_head_size<32, 64, 80, 96, 128>(a.z.hs, [&]<int D>() {
    visit_dropout(a.dropout, [&]<bool kDrops>() {
      using S = Tile<D, kDrops>;
      const int64_t blocks = (a.z.tq + S::kQueries - 1) / S::kQueries * a.z.batch * a.z.heads;
      launch(c, attention_mma_forward<D, kDrops>, unsigned(blocks), kThreads, S::kShared, a);
    });
  });
}

}  // namespace tg::cuda
