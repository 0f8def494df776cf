// Up to four rows of queries (decoding) are bound by reading keys and values: in place, once for all rows. The sums are
// those of the blocks: a score is one chain over hs. Keys are lanes, by transposes in registers.
#pragma once
#include <tapegrad/cpu/attention/blocks.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/transpose.h>
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm/gemm_micro.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>

namespace tg::cpu::TG_ISA_NS::few {
inline constexpr int64_t kRows = 4;

// add(): a word of each key by its kEach elements of a query.
template <class T> struct Terms {
  using C = T;
  static constexpr int kEach = 1;
  static void add(Vector<C>& sum, const C* q, Vector<C> x) { sum = fma(Vector<C>{} + *q, x, sum); }
};
template <> struct Terms<bf16> {
  using C = float;
  static constexpr int kEach = 2;
  static void add(Vector<C>& sum, const C* q, Vector<C> x) {
    const auto both = reinterpret_cast<Vector<uint32_t>>(x);
    const Vector<C> of[] = {reinterpret_cast<Vector<C>>(both << 16), reinterpret_cast<Vector<C>>(both & 0xffff0000)};
    sum = fma(Vector<C>{} + q[0], of[!kUpper], sum);
    sum = fma(Vector<C>{} + q[1], of[kUpper], sum);
  }
};
#if TG_ISA_LEVEL == 4
struct PairTerms : Terms<float> {
  static void add(Vector<C>& sum, const C* q, Vector<C> x) { micro::Bf16Pairs::add(sum, *q, x); }
};
#else
using PairTerms = Terms<float>;  // unused
#endif

// Elements of a query row, whose rest is 0.
template <class C> int64_t padded(int64_t hs) { return (hs + 2 * kVector<C> - 1) / (2 * kVector<C>)*2 * kVector<C>; }

// Scores of R queries, `step` apart, and G vectors of keys; n keys exist.
template <class Of, int R, int G, class K, class C>
void score_lanes(int64_t bytes, const C* q, int64_t step, MatView<K> keys, int64_t n, C* s) {
  constexpr int L = int(kVector<C>);
  const char* from[G * L];
  // Reads hop from row to row: the next keys are prefetched.
  const int64_t ahead = G * L * keys.row * int64_t(sizeof(K));
#pragma GCC unroll 32
  for (int r = 0; r < G * L; ++r)
    from[r] = reinterpret_cast<const char*>(keys.p + std::min<int64_t>(r, n - 1) * keys.row);
  Vector<C> sum[R][G] = {};
  const auto add = [&](int g, Vector<C>(&x)[L]) TG_INLINE {
    transpose_words<C>(x);
#pragma GCC unroll 16
    for (int t = 0; t < L; ++t)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) Of::add(sum[r][g], q + r * step + t * Of::kEach, x[t]);
  };
  int64_t at = 0;
#pragma GCC unroll 1
  for (; at + kVectorBytes <= bytes; at += kVectorBytes, q += L * Of::kEach)
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
      Vector<C> x[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) {
        const char* const p = from[g * L + r] + at;
        x[r] = load_vector(reinterpret_cast<const C*>(p));
        __builtin_prefetch(p + ahead);
      }
      add(g, x);
    }
  for (int g = 0; at < bytes && g < G; ++g) {
    Vector<C> x[L] = {};
    for (int r = 0; r < L; ++r) std::memcpy(&x[r], from[g * L + r] + at, size_t(bytes - at));
    add(g, x);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) store_vector(s + r * blocks::kKeys + g * L, sum[r][g]);
}
// s (R, kKeys) = Q K^T of n keys of hs elements.
template <class Of, int R, class K, class C>
void scores(const C* q, int64_t step, MatView<K> keys, int64_t n, int64_t hs, C* s) {
  constexpr int64_t L = kVector<C>;
  const int64_t bytes = hs * int64_t(sizeof(K));
  int64_t j = 0;
  if constexpr (R == 1)  // two chains hide the latency
    for (; j + L < n; j += 2 * L) score_lanes<Of, R, 2>(bytes, q, step, keys.at(j, 0), n - j, s + j);
  for (; j < n; j += L) score_lanes<Of, R, 1>(bytes, q, step, keys.at(j, 0), n - j, s + j);
}

// Scores of n keys become exponentials, as lanes::softmax_step() makes them. Returns the factor of earlier sums.
template <class C> C softmax_step(int64_t n, C scale, C* s, C& max, C& sum) {
  using V = Vector<C>;
  constexpr int64_t L = kVector<C>, kChain = 16;
  const C before = max;
  V most = V{} - std::numeric_limits<C>::infinity();
  std::fill(s + n, s + whole_vectors<C>(n), s[0]);
  for (int64_t j = 0; j < n; j += L) {
    const V x = load_vector(s + j);
    most = most < x ? x : most;
  }
  C top = join_lanes<L>(most, [](auto& a, const auto& b) { a = a < b ? b : a; }) * scale;
  max = top = before < top ? top : before;
  for (int64_t j = 0; j < n; j += L) store_vector(s + j, exp2_to_zero(fma(load_vector(s + j), V{} + scale, V{} - top)));
  C some[blocks::kKeys / kChain] = {}, total = 0;
  if (n == blocks::kKeys) {
    for (int64_t i = 0; i < kChain; ++i)
#pragma GCC unroll 8
      for (int64_t c = 0; c < blocks::kKeys / kChain; ++c) some[c] += s[c * kChain + i];
  } else {
    for (int64_t j = 0; j < n; ++j) some[j / kChain] += s[j];
  }
  for (int64_t c = 0; c * kChain < n; ++c) total += some[c];
  const C f = exp2_to_zero(V{} + (before - top))[0];
  sum = fma(sum, f, total);
  return f;
}
// weights[j] *= mask of key j, from position `key` on, a multiple of 4. Inlined, it slows calls without dropout.
template <class C>
[[gnu::noinline]] void drop(const tg::kernel::AttentionMask& m, int64_t head, int64_t query, int64_t key, int64_t n,
                            C* weights) {
  for (int64_t j = 0; j < n; ++j) {
    const Words b = tg::kernel::attention_words(m.rng, head, query, (key + j) / 4);
    weights[j] *= int32_t(tg::detail::word_of(b, uint64_t(j)) >> 8) < m.limit ? C(0) : C(m.factor);
  }
}

// y (R, ld) = factor y + S V, one chain of n <= kKeys values; without `add`, S V. N: vectors.
template <int R, int N, class C, class T>
void weigh_vectors(const C* s, MatView<T> values, int64_t n, const C* factor, bool add, C* y, int64_t ld) {
  constexpr int64_t L = kVector<C>;
  Vector<C> sum[R][N] = {};
  for (int64_t j = 0; j < n; ++j) {
    const T* const row = values.p + j * values.row;
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) {
      const auto x = load<Vector<C>>(row + k * L);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][k] = fma(Vector<C>{} + s[r * blocks::kKeys + j], x, sum[r][k]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) {
      C* const to = y + r * ld + k * L;
      store_vector(to, add ? sum[r][k] + load_vector(to) * factor[r] : sum[r][k]);
    }
}
template <int R, int N = R == 1 ? 8 : kVectorBytes / 4 / R, class C, class T>
void weigh(const C* s, MatView<T> values, int64_t n, int64_t hs, const C* factor, bool add, C* y, int64_t ld) {
  constexpr int64_t L = kVector<C>;
  int64_t i = 0;
  for (; i + N * L <= hs; i += N * L) weigh_vectors<R, N>(s, values.at(0, i), n, factor, add, y + i, ld);
  if constexpr (N > 1) return weigh<R, N / 2>(s, values.at(0, i), n, hs - i, factor, add, y + i, ld);
  for (; i < hs; ++i)
    for (int r = 0; r < R; ++r) {
      C sum = 0, &to = y[r * ld + i];
      for (int64_t j = 0; j < n; ++j) sum = fma(s[r * blocks::kKeys + j], C(values.p[j * values.row + i]), sum);
      to = add ? sum + to * factor[r] : sum;
    }
}
}  // namespace tg::cpu::TG_ISA_NS::few
