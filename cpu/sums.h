// Sums with a fixed order of additions: the same bits for any thread count, any alignment and any width of vectors. 64
// running sums, added as a tree.
#pragma once
#include <tapegrad/cpu/isa.h>

#include <cstring>
#include <limits>

namespace tg::cpu::TG_ISA_NS {

inline constexpr int kLanes = 16;
inline constexpr int kWide = 4 * kLanes;  // of one chain of additions, each would wait for the one before

// The upper half is joined to the lower one until one is left. By vector types, as compilers pass halves through
// memory.
template <int N, class C, class F> inline C join_halves(const C* x, const F& join) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    typedef C Half __attribute__((vector_size(N / 2 * sizeof(C))));
    Half lower, upper;
    std::memcpy(&lower, x, sizeof lower), std::memcpy(&upper, x + N / 2, sizeof upper);
    join(lower, upper);
    C y[N / 2];
    std::memcpy(y, &lower, sizeof y);
    return join_halves<N / 2>(y, join);
  }
}
// sum over i < n of f(i), in C.
template <class C, class F> inline C lane_sum(int64_t n, F&& f) {
  C lane[kWide] = {};
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide)
    for (int k = 0; k < kWide; ++k) lane[k] += f(i + k);
  for (int k = 0; i + k < n; ++k) lane[k] += f(i + k);
  return join_halves<kWide>(lane, [](auto& a, const auto& b) { a += b; });
}
// max over i < n of f(i); n >= 1. NaN wins, counted on its own: one comparison that does both is no vector instruction.
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
