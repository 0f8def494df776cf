// Gradients of attention of bf16 on tensor cores, without atomics: one kernel has a block of keys and goes over blocks
// of queries (dk, dv), one has a block of queries and goes over blocks of keys (dq). Both compute the scores again, and
// load the next block while they work on one.
#include <tapegrad/cuda/attention/attention_mma.h>

namespace tg::cuda {
namespace {
template <int D> struct Tile {
  static constexpr int kOwn = 16 * kWarps, N = D <= 96 ? 8 : 4, kOthers = N * 8;
  static constexpr int kElements = (2 * kOwn + 4 * kOthers) * kStep<D>;
  static constexpr size_t kShared = sizeof(bf16) * kElements + 2 * sizeof(float) * 2 * kOthers;
};
// In shared memory: two tiles of the block's own rows, two stages of two tiles of the others, two stages of lse in
// powers of 2 and delta of kOthers queries.
template <int D> struct Shared {
  using S = Tile<D>;
  bf16* p = dynamic_shared<bf16>();
  __device__ __forceinline__ bf16* own(int i) const { return p + i * S::kOwn * kStep<D>; }
  __device__ __forceinline__ bf16* others(int stage, int i) const {
    return p + (2 * S::kOwn + (2 * stage + i) * S::kOthers) * kStep<D>;
  }
  __device__ __forceinline__ float* stats(int stage) const {
    return reinterpret_cast<float*>(p + S::kElements) + stage * 2 * S::kOthers;
  }
};

template <int D> __global__ __launch_bounds__(kThreads, 1) void attention_mma_grad_keys(AttentionGradArgs<bf16> a) {
  using S = Tile<D>;
  static_assert(2 * S::kOthers <= kThreads);
  const AttentionSizes& z = a.z;
  const Shared<D> m;
  const HeadBlock at(z.batch, z.key_heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t k0 = at.i * S::kOwn;  // the first are seen by the most queries
  const int warp = int(threadIdx.x) / 32;
  const int64_t row0 = k0 + warp * 16, first = z.first_query(span, k0) / S::kOthers * S::kOthers;
  const int64_t blocks = z.tq > first ? (z.tq - first + S::kOthers - 1) / S::kOthers : 0, total = blocks * z.group();
  // The first query that sees the warp's first key, its last, and those of the lane.
  const int64_t seen_by[] = {z.first_query(span, row0), z.first_query(span, row0 + 15)};
  const int64_t own_seen_by[] = {z.first_query(span, row0 + lane_row()), z.first_query(span, row0 + lane_row() + 8)};
  const float scale = float(z.scale * kLog2e);
  bf16 *k = m.own(0) + warp * 16 * kStep<D>, *v = m.own(1) + warp * 16 * kStep<D>;
  const auto load = [&](int64_t n) {  // the n-th block of queries, and one of its 2 * kOthers stats
    const int64_t h = at.h * z.group() + n / blocks, q0 = first + n % blocks * S::kOthers;
    load_tile<S::kOthers, D>(m.others(int(n % 2), 0), a.q.at(at.b, h), q0, z.tq, z.hs);
    load_tile<S::kOthers, D>(m.others(int(n % 2), 1), a.dy.at(at.b, h), q0, z.tq, z.hs);
    cp_async_commit();
    const int of = int(threadIdx.x) / S::kOthers;
    const int64_t q = q0 + int(threadIdx.x) % S::kOthers, i = (at.b * z.heads + h) * z.tq + q;
    if (of == 0) return q < z.tq ? a.lse[i] * float(kLog2e) : std::numeric_limits<float>::infinity();  // weight 0
    return of == 1 && q < z.tq ? a.delta[i] : 0.0f;
  };
  const auto keep = [&](int64_t n, float stat) {
    if (int(threadIdx.x) < 2 * S::kOthers) m.stats(int(n % 2))[threadIdx.x] = stat;
  };
  load_tile<S::kOwn, D>(m.own(0), a.k.at(at.b, at.h), k0, span.keys, z.hs);
  load_tile<S::kOwn, D>(m.own(1), a.v.at(at.b, at.h), k0, span.keys, z.hs);
  cp_async_commit();
  if (total > 0) keep(0, load(0));
  float dk[1][D / 8][4], dv[1][D / 8][4];
  clear(dk);
  clear(dv);
  for (int64_t n = 0; n < total; ++n) {
    cp_async_wait<0>();
    __syncthreads();  // this block is here, and nobody reads the last one
    const bool more = n + 1 < total;
    const float stat = more ? load(n + 1) : 0;
    const int64_t q0 = first + n % blocks * S::kOthers;
    if (seen_by[0] < min(q0 + S::kOthers, z.tq)) {
      const bf16 *q = m.others(int(n % 2), 0), *dy = m.others(int(n % 2), 1);
      const float* stats = m.stats(int(n % 2));
      float p[1][S::N][4], ds[1][S::N][4];  // (keys, queries)
      multiply_rows<D>(p, k, q);
      multiply_rows<D>(ds, v, dy);
#pragma unroll
      for (int j = 0; j < S::N; ++j) {
        const auto lse = load16<2>(stats + j * 8 + lane_column());
        const auto delta = load16<2>(stats + S::kOthers + j * 8 + lane_column());
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t query = q0 + j * 8 + lane_column() + e % 2;
          float weight = exp2_approx(p[0][j][e] * scale - lse.x[e % 2]);
          if (q0 < seen_by[1] && query < own_seen_by[e / 2]) weight = 0;
          p[0][j][e] = weight;
          ds[0][j][e] = weight == 0 ? 0 : weight * (ds[0][j][e] - delta.x[e % 2]);
        }
      }
      add_weighted<D>(dv, p, dy);
      add_weighted<D>(dk, ds, q);
    }
    if (more) keep(n + 1, stat);
  }
  cp_async_wait<0>();  // without queries nothing has waited for the own rows
  __syncthreads();
  const float one[1][2] = {{1, 1}}, scales[1][2] = {{float(z.scale), float(z.scale)}};
  store_rows<D>(a.dk.at(at.b, at.h), dk, scales, k, row0, z.tk, z.hs);
  store_rows<D>(a.dv.at(at.b, at.h), dv, one, v, row0, z.tk, z.hs);
}

template <int D> __global__ __launch_bounds__(kThreads, 1) void attention_mma_grad_queries(AttentionGradArgs<bf16> a) {
  using S = Tile<D>;
  const AttentionSizes& z = a.z;
  const Shared<D> m;
  const HeadBlock at(z.batch, z.heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t q0 = ((z.tq - 1) / S::kOwn - at.i) * S::kOwn;  // the last see the most keys
  const int warp = int(threadIdx.x) / 32;
  const int64_t row0 = q0 + warp * 16, end = z.seen(span, min(q0 + S::kOwn, z.tq) - 1);
  const int64_t warp_end = row0 < z.tq ? z.seen(span, min(row0 + 16, z.tq) - 1) : 0;
  const auto k = a.k.at(at.b, at.h / z.group()), v = a.v.at(at.b, at.h / z.group());
  const float scale = float(z.scale * kLog2e);
  bf16 *q = m.own(0) + warp * 16 * kStep<D>, *dy = m.own(1) + warp * 16 * kStep<D>;
  const auto load = [&](int64_t k0) {
    const int stage = int(k0 / S::kOthers % 2);
    load_tile<S::kOthers, D>(m.others(stage, 0), k, k0, end, z.hs);
    load_tile<S::kOthers, D>(m.others(stage, 1), v, k0, end, z.hs);
    cp_async_commit();
  };
  load_tile<S::kOwn, D>(m.own(0), a.q.at(at.b, at.h), q0, z.tq, z.hs);
  load_tile<S::kOwn, D>(m.own(1), a.dy.at(at.b, at.h), q0, z.tq, z.hs);
  load(0);
  float dq[1][D / 8][4], lse[2], delta[2];
  clear(dq);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = row0 + i * 8 + lane_row(), at_row = (at.b * z.heads + at.h) * z.tq + row;
    lse[i] = row < z.tq ? a.lse[at_row] * float(kLog2e) : 0;
    delta[i] = row < z.tq ? a.delta[at_row] : 0;
  }
  for (int64_t k0 = 0; k0 < end; k0 += S::kOthers) {
    cp_async_wait<0>();
    __syncthreads();  // this block is here, and nobody reads the last one
    if (k0 + S::kOthers < end) load(k0 + S::kOthers);
    if (k0 >= warp_end) continue;
    const int stage = int(k0 / S::kOthers % 2);
    const bf16 *keys = m.others(stage, 0), *values = m.others(stage, 1);
    float p[1][S::N][4], ds[1][S::N][4];  // (queries, keys)
    multiply_rows<D>(p, q, keys);
    multiply_rows<D>(ds, dy, values);
    const bool masked = k0 + S::kOthers > z.seen(span, row0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t seen = z.seen(span, row0 + i * 8 + lane_row()) - k0 - lane_column();
#pragma unroll
      for (int j = 0; j < S::N; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float weight = exp2_approx(p[0][j][2 * i + e] * scale - lse[i]);
          float& x = ds[0][j][2 * i + e];
          x = masked && j * 8 + e >= seen ? 0 : weight * (x - delta[i]);
        }
    }
    add_weighted<D>(dq, ds, keys);
  }
  if (end == 0) {  // without keys nothing has waited for the own rows
    cp_async_wait<0>();
    __syncthreads();
  }
  const float scales[1][2] = {{float(z.scale), float(z.scale)}};
  store_rows<D>(a.dq.at(at.b, at.h), dq, scales, q, row0, z.tq, z.hs);
}
}  // namespace

void attention_grad_mma(const Context& c, const AttentionGradArgs<bf16>& a) {
  visit_head_size<32, 64, 80, 96, 128>(a.z.hs, [&]<int D>() {
    using S = Tile<D>;
    const auto blocks = [](int64_t t) { return (t + S::kOwn - 1) / S::kOwn; };
    const AttentionSizes& z = a.z;
    launch(c, attention_mma_grad_keys<D>, unsigned(blocks(z.tk) * z.batch * z.key_heads), kThreads, S::kShared, a);
    if (z.tq > 0)
      launch(c, attention_mma_grad_queries<D>, unsigned(blocks(z.tq) * z.batch * z.heads), kThreads, S::kShared, a);
  });
}

}  // namespace tg::cuda
