// No atomics: a block owns a tile of keys and loops over queries (dK, dV; P, dS (keys, queries)), or owns queries and
// loops over keys (dQ). Both recompute scores; the next tile loads during the GEMMs.
#include <tapegrad/cuda/attention/attention_mma.h>

namespace tg::cuda {
namespace {
// A warp owns 16 kRowTiles rows and takes 8 N other rows per step.
template <int D, int kRowTiles, int kOtherTiles> struct Tile {
  static constexpr int kTall = kRowTiles, N = kOtherTiles, kOwn = kTall * 16, kBlock = kWarps * kOwn, kOthers = N * 8;
  static constexpr int kElements = (2 * kBlock + 4 * kOthers) * kStep<D>;
  static constexpr size_t kShared = sizeof(bf16) * kElements + 2 * sizeof(float) * 2 * kOthers;
  static constexpr int kCtas = 2;
  static_assert(kShared <= kLeastShared && kCtas * (kShared + kSharedOfBlock) <= kSharedOfSm);
};
// 32 rows of keys per warp with heads of 64 or 80 exceed 255 registers.
template <int D> using KeyTile = Tile<D, D == 32 ? 2 : 1, D == 64 || D == 80 ? 8 : 4>;
template <int D, bool kDrops> using QueryTile = Tile<D, D <= (kDrops ? 80 : 96) ? 2 : 1, D == 32 && !kDrops ? 8 : 4>;

// Own tiles (K, V or Q, dY), then two stages: two other tiles, lse (base 2), delta.
template <class S, int D> struct Shared {
  bf16* p = dynamic_shared<bf16>();
  __device__ __forceinline__ bf16* own(int i) const { return p + i * S::kBlock * kStep<D>; }
  __device__ __forceinline__ bf16* others(int stage, int i) const {
    return p + (2 * S::kBlock + (2 * stage + i) * S::kOthers) * kStep<D>;
  }
  __device__ __forceinline__ float* stats(int stage) const {
    return reinterpret_cast<float*>(p + S::kElements) + stage * 2 * S::kOthers;
  }
};

template <class S> using Scores = float[S::kTall][S::N][4];
// p = P, of the mask if kDrops, ds = dS (keys from k0 on, queries from q0 on). stats: lse (base 2), delta of kOthers
// queries. Four lanes draw four blocks, of two queries and keys 8 apart.
template <class S, bool kDrops>
__device__ __forceinline__ void weigh_keys(Scores<S>& p, Scores<S>& ds, const float* stats, float scale,
                                           const HeadMask<kDrops, float>& mask, int64_t k0, int64_t q0) {
#pragma unroll
  for (int j = 0; j < S::N; ++j) {
    const auto lse = load16<2>(stats + j * 8 + lane_column());
    const auto delta = load16<2>(stats + S::kOthers + j * 8 + lane_column());
#pragma unroll
    for (int t = 0; t < S::kTall; ++t) {
      Words words{};
      const int own = lane_row() % 4;
      if constexpr (kDrops)
        words = across_blocks<4>(
            mask.words(q0 + j * 8 + lane_column() + own % 2, k0 / 4 + t * 4 + own / 2 * 2 + lane_row() / 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p[t][j][e] = exp2_approx(p[t][j][e] * scale - lse.x[e % 2]);
        const float factor = mask(tg::detail::word_of(words, uint64_t(e)));
        ds[t][j][e] = p[t][j][e] * (ds[t][j][e] * factor - delta.x[e % 2]);
        p[t][j][e] *= factor;
      }
    }
  }
}
// Hides keys from `keys` on, and queries before edge + row.
template <class S> __device__ __forceinline__ void mask_keys(Scores<S>& p, Scores<S>& ds, int keys, int edge) {
#pragma unroll
  for (int t = 0; t < S::kTall; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = t * 16 + i * 8 + lane_row(), all = S::kOthers;
      const int unseen = (row < keys ? min(edge + row, all) : all) - lane_column();
#pragma unroll
      for (int j = 0; j < S::N; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (j * 8 + e < unseen) p[t][j][2 * i + e] = ds[t][j][2 * i + e] = 0;
    }
}
template <class S>
__device__ __forceinline__ void weigh_queries(const Scores<S>& p, Scores<S>& ds, const float (&lse)[S::kTall][2],
                                              const float (&delta)[S::kTall][2], float scale) {
#pragma unroll
  for (int t = 0; t < S::kTall; ++t)
#pragma unroll
    for (int j = 0; j < S::N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ds[t][j][e] = exp2_approx(p[t][j][e] * scale - lse[t][e / 2]) * (ds[t][j][e] - delta[t][e / 2]);
}

template <int D, bool kDrops>
__global__ __launch_bounds__(kThreads, KeyTile<D>::kCtas) void attention_mma_grad_keys(AttentionGradArgs<bf16> a) {
  using S = KeyTile<D>;
  static_assert(2 * S::kOthers <= kThreads);
  const AttentionSizes& z = a.z;
  const Shared<S, D> m;
  const HeadBlock at(z.batch, z.key_heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t k0 = at.i * S::kBlock;
  const int warp = int(threadIdx.x) / 32;
  const int64_t row0 = k0 + warp * S::kOwn, first = z.first_query(span, k0) / S::kOthers * S::kOthers;
  const auto tile_of = [&](int64_t q) { return int((q - first) / S::kOthers); };
  const int n_tiles = tile_of(z.tq + S::kOthers - 1), first_visible = tile_of(z.first_query(span, row0)),
            first_full = tile_of(z.first_query(span, row0 + S::kOwn - 1) + S::kOthers - 1);
  // keys: number of valid keys. Queries from first + edge + row on see key `row` of the warp.
  const int keys = int(min(max(span.keys - row0, int64_t(0)), int64_t(S::kOwn)));
  const int edge = z.causal ? int(max(row0 - span.start - first, int64_t(-1) << 30)) : -(1 << 30);
  const float scale = float(z.scale * kLog2e);
  bf16 *k = m.own(0) + warp * S::kOwn * kStep<D>, *v = m.own(1) + warp * S::kOwn * kStep<D>;
  // Loads query tile n; returns the thread's element of stats.
  const auto load = [&](int stage, int h, int n) {
    const int64_t q0 = first + n * S::kOthers;
    load_tile<S::kOthers, D>(m.others(stage, 0), a.q.at(at.b, h), q0, z.tq, z.hs);
    load_tile<S::kOthers, D>(m.others(stage, 1), a.dy.at(at.b, h), q0, z.tq, z.hs);
    cp_async_commit();
    const int of = int(threadIdx.x) / S::kOthers;
    const int64_t q = q0 + int(threadIdx.x) % S::kOthers, i = (at.b * z.heads + h) * z.tq + q;
    if (of == 0) return q < z.tq ? a.lse[i] * float(kLog2e) : std::numeric_limits<float>::infinity();  // weight 0
    return of == 1 && q < z.tq ? a.delta[i] : 0.0f;
  };
  const auto keep = [&](int stage, float stat) {
    if (int(threadIdx.x) < 2 * S::kOthers) m.stats(stage)[threadIdx.x] = stat;
  };
  load_tile<S::kBlock, D>(m.own(0), a.k.at(at.b, at.h), k0, span.keys, z.hs);
  load_tile<S::kBlock, D>(m.own(1), a.v.at(at.b, at.h), k0, span.keys, z.hs);
  cp_async_commit();
  int h = int(at.h * z.group()), n = 0;
  const int heads = first < z.tq ? h + int(z.group()) : h;
  if (h < heads) keep(0, load(0, h, n));
  float dk[S::kTall][D / 8][4], dv[S::kTall][D / 8][4];
  clear(dk);
  clear(dv);
  for (int stage = 0; h < heads; stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // tile has arrived; no thread reads the last one
    const bool last = n + 1 == n_tiles, more = !last || h + 1 < heads;
    const float stat = more ? load(stage ^ 1, last ? h + 1 : h, last ? 0 : n + 1) : 0;
    if (n >= first_visible) {
      const bf16 *q = m.others(stage, 0), *dy = m.others(stage, 1);
      const float* stats = m.stats(stage);
      float p[S::kTall][S::N][4], ds[S::kTall][S::N][4];  // (keys, queries)
      multiply_rows<D>(p, k, q);
      multiply_rows<D>(ds, v, dy);
      const HeadMask<kDrops, float> mask(a.dropout, at.b * z.heads + h, span.start);
      weigh_keys<S, kDrops>(p, ds, stats, scale, mask, row0, first + n * S::kOthers);
      if (n < first_full) mask_keys<S>(p, ds, keys, edge - n * S::kOthers);
      add_weighted<D>(dv, p, dy);
      add_weighted<D>(dk, ds, q);
    }
    if (more) keep(stage ^ 1, stat);
    h = last ? h + 1 : h, n = last ? 0 : n + 1;
  }
  cp_async_wait<0>();  // own rows may be in flight
  __syncthreads();
  float ones[S::kTall][2], scales[S::kTall][2];
#pragma unroll
  for (int t = 0; t < S::kTall; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) ones[t][i] = 1, scales[t][i] = float(z.scale);
  store_rows<D>(a.dk.at(at.b, at.h), dk, scales, k, row0, z.tk, z.hs);
  store_rows<D>(a.dv.at(at.b, at.h), dv, ones, v, row0, z.tk, z.hs);
}

template <int D, bool kDrops>
__global__ __launch_bounds__(kThreads,
                             QueryTile<D, kDrops>::kCtas) void attention_mma_grad_queries(AttentionGradArgs<bf16> a) {
  using S = QueryTile<D, kDrops>;
  const AttentionSizes& z = a.z;
  const Shared<S, D> m;
  const HeadBlock at(z.batch, z.heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t q0 = ((z.tq - 1) / S::kBlock - at.i) * S::kBlock;
  const int warp = int(threadIdx.x) / 32;
  const int64_t row0 = q0 + warp * S::kOwn, end = z.seen(span, min(q0 + S::kBlock, z.tq) - 1);
  const int64_t warp_end = row0 < z.tq ? z.seen(span, min(row0 + S::kOwn, z.tq) - 1) : 0;
  const auto k = a.k.at(at.b, at.h / z.group()), v = a.v.at(at.b, at.h / z.group());
  const float scale = float(z.scale * kLog2e);
  bf16 *q = m.own(0) + warp * S::kOwn * kStep<D>, *dy = m.own(1) + warp * S::kOwn * kStep<D>;
  const auto load = [&](int stage, int64_t k0) {
    load_tile<S::kOthers, D>(m.others(stage, 0), k, k0, end, z.hs);
    load_tile<S::kOthers, D>(m.others(stage, 1), v, k0, end, z.hs);
    cp_async_commit();
  };
  load_tile<S::kBlock, D>(m.own(0), a.q.at(at.b, at.h), q0, z.tq, z.hs);
  load_tile<S::kBlock, D>(m.own(1), a.dy.at(at.b, at.h), q0, z.tq, z.hs);
  load(0, 0);
  float dq[S::kTall][D / 8][4], lse[S::kTall][2], delta[S::kTall][2], scales[S::kTall][2];
  clear(dq);
#pragma unroll
  for (int t = 0; t < S::kTall; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = row0 + t * 16 + i * 8 + lane_row(), at_row = (at.b * z.heads + at.h) * z.tq + row;
      lse[t][i] = row < z.tq ? a.lse[at_row] * float(kLog2e) : 0;
      delta[t][i] = row < z.tq ? a.delta[at_row] : 0;
      scales[t][i] = float(z.scale);
    }
  const HeadMask<kDrops, float> mask(a.dropout, at.b * z.heads + at.h, span.start);
  int stage = 0;
  for (int64_t k0 = 0; k0 < end; k0 += S::kOthers, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // tile has arrived; no thread reads the last one
    if (k0 + S::kOthers < end) load(stage ^ 1, k0 + S::kOthers);
    if (k0 >= warp_end) continue;
    const bf16 *keys = m.others(stage, 0), *values = m.others(stage, 1);
    float p[S::kTall][S::N][4], ds[S::kTall][S::N][4];  // (queries, keys)
    multiply_rows<D>(p, q, keys);
    multiply_rows<D>(ds, dy, values);
    drop_rows(ds, mask, row0, k0);
    weigh_queries<S>(p, ds, lse, delta, scale);
    if (k0 + S::kOthers > z.seen(span, row0)) mask_rows(ds, 0, z, span, row0, k0);
    add_weighted<D>(dq, ds, keys);
  }
  if (end == 0) {  // own rows may be in flight
    cp_async_wait<0>();
    __syncthreads();
  }
  store_rows<D>(a.dq.at(at.b, at.h), dq, scales, q, row0, z.tq, z.hs);
}
}  // namespace

void attention_grad_mma(const Context& c, const AttentionGradArgs<bf16>& a) {
  visit_head_size<32, 64, 80, 96, 128>(a.z.hs, [&]<int D>() {
    const AttentionSizes& z = a.z;
    const auto run = [&]<class S>(std::type_identity<S>, auto kernel, int64_t t, int64_t heads) {
      const int64_t blocks = (t + S::kBlock - 1) / S::kBlock * z.batch * heads;
      if (blocks > 0) launch(c, kernel, unsigned(blocks), kThreads, S::kShared, a);
    };
    visit_dropout(a.dropout, [&]<bool kDrops>() {
      run(std::type_identity<KeyTile<D>>(), attention_mma_grad_keys<D, kDrops>, z.tk, z.key_heads);
      run(std::type_identity<QueryTile<D, kDrops>>(), attention_mma_grad_queries<D, kDrops>, z.tq, z.heads);
    });
  });
}

}  // namespace tg::cuda
