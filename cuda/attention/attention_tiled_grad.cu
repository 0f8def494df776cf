// No atomics: a block owns a tile of keys and loops over queries (dk, dv), or owns queries and loops over keys (dq).
// Both recompute scores.
#include <tapegrad/cuda/attention/attention_tiled.h>

namespace tg::cuda {
namespace {
// Fewer rows per thread, own (R) and other (N), if rows are long. kTurns: both other tiles share memory.
template <class C, int D, bool kSmall = false> struct Tile {
  static constexpr bool kTurns = kSmall;
  static constexpr int kBytes = D * int(sizeof(C)), R = kBytes <= 512 ? 4 : kBytes <= 1024 ? 2 : 1;
  static constexpr int N = kBytes <= 512 ? (kTurns && sizeof(C) == 8 ? 1 : 2) : kBytes <= 1024 && !kTurns ? 2 : 1;
  static constexpr int kOwn = R * kSide, kOthers = N * kSide, kRows = 2 * kOwn + (kTurns ? 1 : 2) * kOthers;
  static constexpr size_t kShared = sizeof(C) * (kRows * kStep<C, D> + kOwn * kStep<C, kOthers>);
  static_assert(!kTurns || kShared <= kLeastShared);
};
template <class C, int D, class S> struct Shared {
  C *own[2], *others[2], *weights;
  __device__ __forceinline__ Shared() {
    own[0] = dynamic_shared<C>();
    own[1] = own[0] + S::kOwn * kStep<C, D>;
    others[0] = own[1] + S::kOwn * kStep<C, D>;
    others[1] = S::kTurns ? others[0] : others[0] + S::kOthers * kStep<C, D>;
    weights = others[1] + S::kOthers * kStep<C, D>;
  }
};
// Loads tile i; the second tile too unless both share memory.
template <class S, class F> __device__ __forceinline__ void take_turn(int i, F load) {
  __syncthreads();
  load(i);
  if constexpr (!S::kTurns) load(1 - i);
  __syncthreads();
}

template <class T, int D, class S, bool kDrops>
__global__ __launch_bounds__(kThreads, 1) void attention_tiled_grad_keys(AttentionGradArgs<T> a) {
  using C = compute_t<T>;
  const AttentionSizes& z = a.z;
  const Shared<C, D, S> m;
  const HeadBlock at(z.batch, z.key_heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t k0 = at.i * S::kOwn;
  const int row0 = int(threadIdx.x) / kSide * S::R, tx = int(threadIdx.x) % kSide;
  load_tile<S::kOwn, D>(m.own[0], a.k.at(at.b, at.h), k0, span.keys, z.hs);
  load_tile<S::kOwn, D>(m.own[1], a.v.at(at.b, at.h), k0, span.keys, z.hs);
  C dk[S::R][D / kSide], dv[S::R][D / kSide];
  clear(dk);
  clear(dv);
  for (int64_t h = at.h * z.group(); h < (at.h + 1) * z.group(); ++h) {
    const int64_t stats = (at.b * z.heads + h) * z.tq;
    const HeadMask<kDrops, C> mask(a.dropout, at.b * z.heads + h, span.start);
    for (int64_t q0 = z.first_query(span, k0) / S::kOthers * S::kOthers; q0 < z.tq; q0 += S::kOthers) {
      const auto load = [&](int i) {
        load_tile<S::kOthers, D>(m.others[i], (i ? a.dy : a.q).at(at.b, h), q0, z.tq, z.hs);
      };
      C p[S::R][S::N], ds[S::R][S::N];  // (keys, queries)
      take_turn<S>(0, load);
      multiply_rows<D>(p, m.own[0], m.others[0]);
      if constexpr (S::kTurns) take_turn<S>(1, load);
      multiply_rows<D>(ds, m.own[1], m.others[1]);
#pragma unroll
      for (int n = 0; n < S::N; ++n) {
        const int64_t i = q0 + tx + n * kSide;
        const bool inside = i < z.tq;
        const C lse = inside ? a.lse[stats + i] * C(kLog2e) : 0, delta = inside ? a.delta[stats + i] : 0;
        const int64_t seen = inside ? z.seen(span, i) - k0 : 0;
        const Words words = mask.words(i, (k0 + row0) / 4);
#pragma unroll
        for (int r = 0; r < S::R; ++r) {
          const bool sees = row0 + r < seen;
          p[r][n] = sees ? power2(p[r][n] * C(z.scale * kLog2e) - lse) : 0;
          const C factor = mask(tg::detail::word_of(words, uint64_t(row0 + r)));
          ds[r][n] = sees ? p[r][n] * (ds[r][n] * factor - delta) : 0;
          p[r][n] *= factor;
        }
      }
      store_weights(m.weights, p);
      add_weighted<S::kOthers, D>(dv, m.weights, m.others[1]);
      if constexpr (S::kTurns) take_turn<S>(0, load);
      store_weights(m.weights, ds);
      add_weighted<S::kOthers, D>(dk, m.weights, m.others[0]);
    }
  }
  C one[S::R], scale[S::R];
#pragma unroll
  for (int r = 0; r < S::R; ++r) one[r] = 1, scale[r] = C(z.scale);
  store_tile<D>(a.dk.at(at.b, at.h), dk, scale, k0, z.tk, z.hs);
  store_tile<D>(a.dv.at(at.b, at.h), dv, one, k0, z.tk, z.hs);
}

template <class T, int D, class S, bool kDrops>
__global__ __launch_bounds__(kThreads, 1) void attention_tiled_grad_queries(AttentionGradArgs<T> a) {
  using C = compute_t<T>;
  const AttentionSizes& z = a.z;
  const Shared<C, D, S> m;
  const HeadBlock at(z.batch, z.heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t q0 = ((z.tq - 1) / S::kOwn - at.i) * S::kOwn;
  const int64_t end = z.seen(span, min(q0 + S::kOwn, z.tq) - 1), row0 = q0 + int(threadIdx.x) / kSide * S::R;
  const int tx = int(threadIdx.x) % kSide;
  const auto k = a.k.at(at.b, at.h / z.group()), v = a.v.at(at.b, at.h / z.group());
  load_tile<S::kOwn, D>(m.own[0], a.q.at(at.b, at.h), q0, z.tq, z.hs);
  load_tile<S::kOwn, D>(m.own[1], a.dy.at(at.b, at.h), q0, z.tq, z.hs);
  C dq[S::R][D / kSide], lse[S::R], delta[S::R], scale[S::R];
  clear(dq);
#pragma unroll
  for (int r = 0; r < S::R; ++r) {
    const int64_t i = (at.b * z.heads + at.h) * z.tq + row0 + r;
    lse[r] = row0 + r < z.tq ? a.lse[i] * C(kLog2e) : 0;
    delta[r] = row0 + r < z.tq ? a.delta[i] : 0;
    scale[r] = C(z.scale);
  }
  const HeadMask<kDrops, C> mask(a.dropout, at.b * z.heads + at.h, span.start);
  for (int64_t k0 = 0; k0 < end; k0 += S::kOthers) {
    const auto load = [&](int i) { load_tile<S::kOthers, D>(m.others[i], i ? v : k, k0, end, z.hs); };
    C p[S::R][S::N], ds[S::R][S::N];  // (queries, keys)
    take_turn<S>(1, load);
    multiply_rows<D>(ds, m.own[1], m.others[1]);
    if constexpr (S::kTurns) take_turn<S>(0, load);
    multiply_rows<D>(p, m.own[0], m.others[0]);
    drop_rows(ds, mask, row0, k0);
#pragma unroll
    for (int r = 0; r < S::R; ++r) {
      const int64_t seen = z.seen(span, row0 + r) - k0;
#pragma unroll
      for (int n = 0; n < S::N; ++n) {
        const C weight = power2(p[r][n] * C(z.scale * kLog2e) - lse[r]);
        ds[r][n] = tx + n * kSide < seen ? weight * (ds[r][n] - delta[r]) : 0;
      }
    }
    store_weights(m.weights, ds);
    add_weighted<S::kOthers, D>(dq, m.weights, m.others[0]);
  }
  store_tile<D>(a.dq.at(at.b, at.h), dq, scale, q0, z.tq, z.hs);
}
template <class T, int... kSizes> void run(const Context& c, const AttentionGradArgs<T>& a) {
  const AttentionSizes& z = a.z;
  visit_head_size<kSizes...>(z.hs, [&]<int D>() {
    visit_tile<Tile<compute_t<T>, D>, Tile<compute_t<T>, D, true>>(c, dtype_of<T>(), z.hs, [&]<class S>() {
      const auto run = [&](auto kernel, int64_t t, int64_t heads) {
        const int64_t blocks = (t + S::kOwn - 1) / S::kOwn * z.batch * heads;
        if (blocks > 0) launch(c, kernel, unsigned(blocks), kThreads, S::kShared, a);
      };
      visit_dropout(a.dropout, [&]<bool kDrops>() {
        run(attention_tiled_grad_keys<T, D, S, kDrops>, z.tk, z.key_heads);
        run(attention_tiled_grad_queries<T, D, S, kDrops>, z.tq, z.heads);
      });
    });
  });
}
}  // namespace

template <> void attention_grad_tiled(const Context& c, const AttentionGradArgs<float>& a) {
  run<float, 32, 64, 80, 96, 128, 256, 512>(c, a);
}
template <> void attention_grad_tiled(const Context& c, const AttentionGradArgs<bf16>& a) { run<bf16, 256, 512>(c, a); }
template <> void attention_grad_tiled(const Context& c, const AttentionGradArgs<double>& a) {
  run<double, 64, 128, 256>(c, a);
}

}  // namespace tg::cuda
