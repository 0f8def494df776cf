// The same bits for any thread count, alignment and vector width. 64 accumulators per block of 4096 terms, then the
// blocks, are reduced as trees: errors grow with the logarithm of the number of terms.
#pragma once
#include <tapegrad/cpu/simd/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

namespace tg::cpu::TG_ISA_NS {

inline constexpr int kLanes = 16;
inline constexpr int kWide = 4 * kLanes;  // hide the latency of additions

template <int From, class V, int... I> inline auto lanes_of(const V& x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, x, (From + I)...);
}
// By halves: join(a, b) reduces b into a. Shuffles, because compilers pass halves through memory.
template <int N, class V, class F> inline auto join_lanes(const V& x, const F& join) {
  if constexpr (N == 2) {
    auto lower = x[0];
    join(lower, x[1]);
    return lower;
  } else {
    constexpr std::make_integer_sequence<int, N / 2> kHalf;
    auto lower = lanes_of<0>(x, kHalf);
    join(lower, lanes_of<N / 2>(x, kHalf));
    return join_lanes<N / 2>(lower, join);
  }
}
// join_lanes() of P consecutive vectors.
template <size_t P, class V, class F> inline auto join_vectors(V (&x)[P], const F& join) {
  if constexpr (P == 1) {
    return join_lanes<int(sizeof(V) / sizeof(x[0][0]))>(x[0], join);
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      V lower[P / 2] = {x[I]...};
      (join(lower[I], x[P / 2 + I]), ...);
      return join_vectors(lower, join);
    }(std::make_index_sequence<P / 2>());
  }
}
inline constexpr auto kAdd = [](auto& a, const auto& b) { a += b; };
inline constexpr int64_t kSumBlock = 4096;
template <size_t N, class C, class F> inline std::array<C, N> tree_of_blocks(int64_t n, F&& block) {
  std::array<C, N> level[48];  // sums of 1, 2, 4 ... blocks, largest first
  int depth = 0;
  const auto add = [](const auto& before, auto& later) {
    for (size_t k = 0; k < N; ++k) later[k] = before[k] + later[k];
  };
  for (int64_t j = 0, count = 0;; j += kSumBlock, ++count) {
    std::array<C, N> sum = block(j, std::min(n, j + kSumBlock));
    for (int64_t k = count; k & 1; k >>= 1) add(level[--depth], sum);
    if (j + kSumBlock < n) {
      level[depth++] = sum;
      continue;
    }
    while (depth) add(level[--depth], sum);
    return sum;
  }
}
template <class C, class F> inline C lane_sum(int64_t n, F&& f) {
  return tree_of_blocks<1, C>(n, [&](int64_t i, int64_t end) {
    C lane[kWide] = {};
    for (; i + kWide <= end; i += kWide)
      for (int k = 0; k < kWide; ++k) lane[k] += f(i + k);
    for (int k = 0; i + k < end; ++k) lane[k] += f(i + k);
    Vector<C> all[kWide / kVector<C>];
    std::memcpy(all, lane, sizeof all);
    return std::array<C, 1>{join_vectors(all, kAdd)};
  })[0];
}
// Tree reduction into chunk 0; chunk c has w contiguous elements from part + c * step on.
template <class A, class F> void join_chunks(A* part, int64_t chunks, int64_t step, int64_t w, const F& join) {
  for (int64_t apart = 1; apart < chunks; apart *= 2)
    for (int64_t c = 0; c + apart < chunks; c += 2 * apart) {
      A *const to = part + c * step, *const more = to + apart * step;
      for (int64_t j = 0; j < w; ++j) to[j] = join(to[j], more[j]);
    }
}
// max of f(i), n >= 1. NaN wins: a separate count, since a comparison with both rules does not vectorise.
template <class C, class F> inline C lane_max(int64_t n, F&& f) {
  C lane[kLanes];
  for (int k = 0; k < kLanes; ++k) lane[k] = f(0);
  const auto larger = [](C a, C b) { return a < b ? b : a; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lane[k] = larger(lane[k], f(i + k));
  for (int k = 0; i + k < n; ++k) lane[k] = larger(lane[k], f(i + k));
  for (int half = kLanes / 2; half; half /= 2)
    for (int k = 0; k < half; ++k) lane[k] = larger(lane[k], lane[k + half]);
  const int32_t missing = lane_sum<int32_t>(n, [&](int64_t j) {
    const C x = f(j);
    return int32_t(x != x);
  });
  return missing ? std::numeric_limits<C>::quiet_NaN() : lane[0];
}

}  // namespace tg::cpu::TG_ISA_NS
