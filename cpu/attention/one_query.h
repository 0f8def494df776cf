// One query (decoding) is bound by reading keys and values: each row once, in memory order, in its dtype.
#pragma once
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/ops/attention.h>

#include <algorithm>
#include <cstring>

namespace tg::cpu::TG_ISA_NS::one_query {
template <class C> inline constexpr int kParts = kLanes / int(kVector<C>);

// s[j] = q . row j of keys (n, hs).
template <class C, class T> void scores(const C* q, const T* keys, int64_t ld, int64_t n, int64_t hs, C* s) {
  constexpr int P = kParts<C>, W = int(kVector<C>);
  for (int64_t j = 0; j < n; ++j, keys += ld) {
    Vector<C> sum[P] = {};
    int64_t i = 0;
    for (; i + kLanes <= hs; i += kLanes)
#pragma GCC unroll 8
      for (int k = 0; k < P; ++k) sum[k] += load_vector(q + i + k * W) * load<Vector<C>>(keys + i + k * W);
    C rest = 0;
    for (; i < hs; ++i) rest += q[i] * C(keys[i]);
    s[j] = rest + join_vectors(sum, kAdd);
  }
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
// N vectors of y = sum of s[j] values[j]. Short chains reduce rounding error.
template <int N, class C, class T> void weigh_vectors(const C* s, const T* values, int64_t ld, int64_t n, C* y) {
  constexpr int64_t kChain = 128, W = kVector<C>;
  Vector<C> all[N] = {};
  for (int64_t j0 = 0; j0 < n; j0 += kChain) {
    Vector<C> sum[N] = {};
    for (int64_t j = j0; j < std::min(n, j0 + kChain); ++j, values += ld)
#pragma GCC unroll 8
      for (int k = 0; k < N; ++k) sum[k] += s[j] * load<Vector<C>>(values + k * W);
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) all[k] += sum[k];
  }
  std::memcpy(y, all, sizeof all);
}
template <class C, class T> void weigh(const C* s, const T* values, int64_t ld, int64_t n, int64_t hs, C* y) {
  constexpr int64_t W = kVector<C>;
  int64_t i = 0;
  for (; i + 8 * W <= hs; i += 8 * W) weigh_vectors<8>(s, values + i, ld, n, y + i);
  for (; i + 4 * W <= hs; i += 4 * W) weigh_vectors<4>(s, values + i, ld, n, y + i);
  for (; i + W <= hs; i += W) weigh_vectors<1>(s, values + i, ld, n, y + i);
  for (; i < hs; ++i) {
    y[i] = 0;
    for (int64_t j = 0; j < n; ++j) y[i] += s[j] * C(values[j * ld + i]);
  }
}
}  // namespace tg::cpu::TG_ISA_NS::one_query
