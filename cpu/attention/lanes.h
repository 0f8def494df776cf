// Softmax of attention and its gradient (cpu/attention/attention.cpp) on panels of scores: queries are lanes, so that
// maxima and sums over keys go down the rows and no lane waits for another.
#pragma once
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/exp.h>

#include <algorithm>
#include <limits>

namespace tg::cpu::TG_ISA_NS::lanes {

// Rows of scores (n, width), `ld` apart, a row for each key; whole vectors. Lane j sees the first `seen` + j of them.
struct Panel {
  int64_t ld, n, width, seen;
  int64_t seen_by(int64_t lane) const { return std::clamp<int64_t>(seen + lane, 0, n); }
};
template <class C> inline Vector<C> lane_numbers() {
  Vector<C> v;
  for (int64_t i = 0; i < kVector<C>; ++i) v[i] = C(i);
  return v;
}
// Lanes from w on: f(k, hidden) for the keys that one of them sees. `hidden` selects what it gets first, for those who
// do not see the key.
template <class C, class F> TG_HD_INLINE void for_seen(const Panel& x, int64_t w, int64_t k, int64_t end, F&& f) {
  const int64_t all = std::min(x.seen_by(w), end), some = std::min(x.seen_by(w + kVector<C> - 1), end);
  for (; k < all; ++k) f(k, [](Vector<C>, Vector<C> y) { return y; });
  for (const Vector<C> lane = lane_numbers<C>(); k < some; ++k)
    f(k, [&](Vector<C> no, Vector<C> y) { return lane < C(k - x.seen - w + 1) ? no : y; });
}
template <class C> inline void clear_rows(const Panel& x, int64_t w, C* p) {
  for (int64_t k = x.seen_by(w + kVector<C> - 1); k < x.n; ++k) store_vector(p + k * x.ld + w, Vector<C>{});
}

// One step of the online softmax of base 2: raw scores s become exponentials, 0 where they do not count; max (of
// `scale` times them) and sum are those of all scores so far. Earlier sums are to be multiplied by `factor`. scale >=
// 0.
template <class C> void softmax_step(const Panel& x, C* s, C scale, C* max, C* sum, C* factor) {
  using V = Vector<C>;
  const V none = V{} - std::numeric_limits<C>::infinity();
  for (int64_t w = 0; w < x.width; w += kVector<C>) {
    V top = none;  // NaN may be passed over: it comes back in the sum of exponentials
    for_seen<C>(x, w, 0, x.n, [&](int64_t k, auto hidden) {
      const V y = hidden(none, load_vector(s + k * x.ld + w));
      top = top < y ? y : top;
    });
    const V before = load_vector(max + w);
    top *= scale;
    top = before < top ? top : before;
    V total = {};
    constexpr int64_t kChain = 16;  // of additions, so that they round less
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

// p: raw scores -> probabilities; dp: gradient of the probabilities -> that of the raw scores, times `to_raw`. With
// delta = dy . y of a query, dscore = p (dp - delta): what softmax's own sum contributes. lse: of base 2; `rest` is
// what its rounding left.
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
