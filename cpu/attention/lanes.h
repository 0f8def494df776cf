// Queries are lanes, so maxima and sums over keys need no horizontal reduction.
#pragma once
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/exp.h>

#include <algorithm>
#include <limits>

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
        const V y = exp2_to_zero(hidden(none, load_vector(s + k * x.ld + w) * scale - top));
        store_vector(s + k * x.ld + w, y);
        some += y;
      });
      total += some;
    }
    clear_rows(x, w, s);
    const V f = exp2_to_zero(before - top);
    store_vector(factor + w, f);
    store_vector(sum + w, load_vector(sum + w) * f + total);
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
      const V y = exp2_to_zero(hidden(none, load_vector(at) * scale - log_sum - log_rest));
      store_vector(at, y);
      store_vector(d, hidden(V{}, y * (load_vector(d) - of_sum) * to_raw));
    });
    clear_rows(x, w, p);
    clear_rows(x, w, dp);
  }
}
}  // namespace tg::cpu::TG_ISA_NS::lanes
