// Queries are lanes, so maxima and sums over keys need no horizontal reduction.
#pragma once
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/exp.h>
#include <tapegrad/cpu/simd/philox.h>
#include <tapegrad/ops/attention.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

namespace tg::cpu::TG_ISA_NS::lanes {

// Scores (n keys, width queries), rows `ld` apart. Lane j sees the first `seen` + j keys.
struct Panel {
  int64_t ld, n, width, seen;
  int64_t seen_by(int64_t lane) const { return std::clamp<int64_t>(seen + lane, 0, n); }
};
template <class C> inline Vector<C> lane_numbers() {
  Vector<C> v;
  for (int64_t i = 0; i < kVector<C>; ++i) v[i] = C(i);
  return v;
}
// Calls f(k, hidden) for keys in [k, end) that a lane >= w sees. hidden(no, yes) is `no` in lanes that do not see k.
template <class C, class F> TG_HD_INLINE void for_seen(const Panel& x, int64_t w, int64_t k, int64_t end, F&& f) {
  const int64_t all = std::min(x.seen_by(w), end), some = std::min(x.seen_by(w + kVector<C> - 1), end);
  for (; k < all; ++k) f(k, [](Vector<C>, Vector<C> y) { return y; });
  for (const Vector<C> lane = lane_numbers<C>(); k < some; ++k)
    f(k, [&](Vector<C> no, Vector<C> y) { return lane < C(k - x.seen - w + 1) ? no : y; });
}
template <class C> inline void clear_rows(const Panel& x, int64_t w, C* p) {
  for (int64_t k = x.seen_by(w + kVector<C> - 1); k < x.n; ++k) store_vector(p + k * x.ld + w, Vector<C>{});
}

// Scores s become exponentials, 0 where masked; max (of scale s, scale >= 0) and sum cover all scores so far. `factor`
// scales earlier sums.
template <class C> void softmax_step(const Panel& x, C* s, C scale, C* max, C* sum, C* factor) {
  using V = Vector<C>;
  const V none = V{} - std::numeric_limits<C>::infinity();
  for (int64_t w = 0; w < x.width; w += kVector<C>) {
    V top = none;  // may lose NaN, but the sum keeps it
    for_seen<C>(x, w, 0, x.n, [&](int64_t k, auto hidden) {
      const V y = hidden(none, load_vector(s + k * x.ld + w));
      top = top < y ? y : top;
    });
    const V before = load_vector(max + w);
    top *= scale;
    top = before < top ? top : before;
    V total = {};
    constexpr int64_t kChain = 16;  // additions per chain, which limit the error
    for (int64_t k0 = 0; k0 < x.n; k0 += kChain) {
      V some = {};
      for_seen<C>(x, w, k0, k0 + kChain, [&](int64_t k, auto hidden) {
        const V y = exp2_to_zero(hidden(none, fma(load_vector(s + k * x.ld + w), V{} + scale, -top)));
        store_vector(s + k * x.ld + w, y);
        some += y;
      });
      total += some;
    }
    clear_rows(x, w, s);
    const V f = exp2_to_zero(before - top);
    store_vector(factor + w, f);
    store_vector(sum + w, fma(load_vector(sum + w), f, total));
    store_vector(max + w, top);
  }
}

// p: raw scores -> probabilities. dp: dP -> gradient of raw scores, p (dp - delta) to_raw. lse: base 2; `rest`: its
// rounding error.
template <class C>
void softmax_grad(const Panel& x, C* p, C* dp, C scale, C to_raw, const C* lse, const C* rest, const C* delta) {
  using V = Vector<C>;
  const V none = V{} - std::numeric_limits<C>::infinity();
  for (int64_t w = 0; w < x.width; w += kVector<C>) {
    const V log_sum = load_vector(lse + w), log_rest = load_vector(rest + w), of_sum = load_vector(delta + w);
    for_seen<C>(x, w, 0, x.n, [&](int64_t k, auto hidden) {
      C* const at = p + k * x.ld + w;
      C* const d = dp + k * x.ld + w;
      const V y = exp2_to_zero(hidden(none, fma(load_vector(at), V{} + scale, -log_sum) - log_rest));
      store_vector(at, y);
      store_vector(d, hidden(V{}, y * (load_vector(d) - of_sum) * to_raw));
    });
    clear_rows(x, w, p);
    clear_rows(x, w, dp);
  }
}

// The mask of dropout: 0 or 1 / (1 - p), in `to` (keys, ld), a multiple of 4 keys. `head`: b NH + h; `query` and `key`:
// positions of the first ones.
template <class C>
void draw_mask(const Panel& x, const kernel::AttentionMask& m, int64_t head, int64_t query, int64_t key, C* to) {
  using namespace philox;
  using Signed = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  constexpr int kSets = int(kVector<C> / kVector<uint64_t>);  // query kSets l + s is lane l of set s
  const Keys keys(m.rng.seed);
  const uint64_t n = m.rng.offset + uint64_t(head), a = (n & kWord) * kM0;
  const auto factors = [&](const Lane(&words)[kSets]) {
    Lane both = words[0] & kWord;
    if constexpr (kSets == 2)
      both = std::endian::native == std::endian::little ? both | words[1] << 32 : words[0] << 32 | (words[1] & kWord);
    const auto upper = (Vector<Signed>)(reinterpret_cast<Vector<std::make_unsigned_t<Signed>>>(both) >> 8);
    return Vector<C>(upper < Signed(m.limit) ? Vector<C>{} : Vector<C>{} + C(m.factor));
  };
  for (int64_t w = 0; w < x.width; w += kVector<C>) {
    Lane first[kSets], rest[kSets];  // x and y after the first round
    for (int s = 0; s < kSets; ++s) {
      Lane i;
      for (int64_t l = 0; l < kVector<uint64_t>; ++l) i[l] = uint64_t(query + w + kSets * l + s);
      rest[s] = product(i, kM1);
      first[s] = (rest[s] >> 32) ^ (n >> 32) ^ keys.of[0][0];
    }
    for (int64_t k = 0; k < x.n; k += 4) {
      Lane b[4][kSets];
      for (int s = 0; s < kSets; ++s)
        b[0][s] = first[s], b[1][s] = rest[s], b[2][s] = keys.of[0][1] ^ (a >> 32) ^ uint64_t((key + k) / 4),
        b[3][s] = Lane{} + a;
      finish(b[0], b[1], b[2], b[3], keys);
      for (int j = 0; j < 4; ++j) store_vector(to + (k + j) * x.ld + w, factors(b[j]));
    }
  }
}
// s *= mask, whose rows are `step` apart.
template <class C> void apply_mask(const Panel& x, const C* mask, int64_t step, C* s) {
  for (int64_t k = 0; k < x.n; ++k, s += x.ld, mask += step)
    for (int64_t i = 0; i < x.width; i += kVector<C>) store_vector(s + i, load_vector(s + i) * load_vector(mask + i));
}
}  // namespace tg::cpu::TG_ISA_NS::lanes
