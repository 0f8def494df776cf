// A block: q rows [q0, q0 + kQueries) of head h, all tiles of keys. K and V share memory in turn.
#include <tapegrad/cuda/attention/attention_tiled.h>

namespace tg::cuda {
namespace {
template <class C, int D, bool kSmall = false> struct Tile {
  static constexpr int kBytes = D * int(sizeof(C)),
                       R = kBytes <= 1024 ? 4
                           : kSmall       ? 1
                                          : 2,
                       N = kSmall          ? 1
                           : kBytes <= 512 ? 4
                                           : 2;
  static constexpr int kQueries = R * kSide, kKeys = N * kSide;
  static constexpr size_t kShared = sizeof(C) * ((kQueries + kKeys) * kStep<C, D> + kQueries * kStep<C, kKeys>);
  static_assert(!kSmall || kShared <= kLeastShared);
};

// Online softmax: s becomes exponentials, 0 beyond `seen`. Returns the factor of earlier sums. The maximum skips NaN;
// the exponentials keep it.
template <int N, class C> __device__ __forceinline__ C softmax_step(C (&s)[N], int64_t seen, C scale, C& max, C& sum) {
  const int tx = int(threadIdx.x) % kSide;
  C next = max;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    s[n] = tx + n * kSide < seen ? s[n] * scale : -std::numeric_limits<C>::infinity();
    next = s[n] > next ? s[n] : next;
  }
  next = over_row<MaxOp>(next);
  const C factor = power2(max - next);
  max = next;
  sum *= factor;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    s[n] = power2(s[n] - next);
    sum += s[n];
  }
  return factor;
}

template <class T, int D, class S, bool kDrops>
__global__ __launch_bounds__(kThreads, 1) void attention_tiled_forward(AttentionArgs<T> a) {
  using C = compute_t<T>;
  const AttentionSizes& z = a.z;
  C *queries = dynamic_shared<C>(), *keys = queries + S::kQueries * kStep<C, D>,
    *weights = keys + S::kKeys * kStep<C, D>;
  const HeadBlock at(z.batch, z.heads);
  const AttentionSpan span = z.span(at.b);
  const int64_t blocks = (z.tq + S::kQueries - 1) / S::kQueries;
  const int64_t q0 = (blocks - 1 - at.i) * S::kQueries;
  const int64_t end = z.seen(span, min(q0 + S::kQueries, z.tq) - 1), row0 = q0 + int(threadIdx.x) / kSide * S::R;
  const auto k = a.k.at(at.b, at.h / z.group()), v = a.v.at(at.b, at.h / z.group());
  load_tile<S::kQueries, D>(queries, a.q.at(at.b, at.h), q0, z.tq, z.hs);
  C o[S::R][D / kSide], max[S::R], sum[S::R];
  clear(o);
#pragma unroll
  for (int r = 0; r < S::R; ++r) max[r] = -std::numeric_limits<C>::infinity(), sum[r] = 0;
  const HeadMask<kDrops, C> mask(a.dropout, at.b * z.heads + at.h, span.start);
  for (int64_t k0 = 0; k0 < end; k0 += S::kKeys) {
    __syncthreads();
    load_tile<S::kKeys, D>(keys, k, k0, end, z.hs);
    __syncthreads();
    C s[S::R][S::N];
    multiply_rows<D>(s, queries, keys);
#pragma unroll
    for (int r = 0; r < S::R; ++r) {
      const C factor = softmax_step(s[r], z.seen(span, row0 + r) - k0, C(z.scale * kLog2e), max[r], sum[r]);
#pragma unroll
      for (int j = 0; j < D / kSide; ++j) o[r][j] *= factor;
    }
    drop_rows(s, mask, row0, k0);
    store_weights(weights, s);
    __syncthreads();
    load_tile<S::kKeys, D>(keys, v, k0, end, z.hs);
    __syncthreads();
    add_weighted<S::kKeys, D>(o, weights, keys);
  }
  C inverse[S::R];
#pragma unroll
  for (int r = 0; r < S::R; ++r) {
    const C total = over_row<SumOp>(sum[r]);
    inverse[r] = end > 0 ? 1 / total : 0;
    if (threadIdx.x % kSide == 0 && row0 + r < z.tq)
      a.lse[(at.b * z.heads + at.h) * z.tq + row0 + r] = (max[r] + logarithm2(total)) * C(kLn2);
  }
  store_tile<D>(a.y.at(at.b, at.h), o, inverse, q0, z.tq, z.hs);
}
template <class T, int... kSizes> void run(const Context& c, const AttentionArgs<T>& a) {
  visit_head_size<kSizes...>(a.z.hs, [&]<int D>() {
    visit_tile<Tile<compute_t<T>, D>, Tile<compute_t<T>, D, true>>(c, dtype_of<T>(), a.z.hs, [&]<class S>() {
      const int64_t blocks = (a.z.tq + S::kQueries - 1) / S::kQueries * a.z.batch * a.z.heads;
      visit_dropout(a.dropout, [&]<bool kDrops>() {
        launch(c, attention_tiled_forward<T, D, S, kDrops>, unsigned(blocks), kThreads, S::kShared, a);
      });
    });
  });
}
}  // namespace

template <> void attention_tiled(const Context& c, const AttentionArgs<float>& a) {
  run<float, 32, 64, 80, 96, 128, 256, 512>(c, a);
}
template <> void attention_tiled(const Context& c, const AttentionArgs<bf16>& a) { run<bf16, 256, 512>(c, a); }
template <> void attention_tiled(const Context& c, const AttentionArgs<double>& a) { run<double, 64, 128, 256>(c, a); }

}  // namespace tg::cuda
