// Sums with a fixed order of additions: the same bits for any thread count and any alignment. 64 running sums, added as
// a tree; what is left of n goes to the first 16 of them.
#pragma once
#include <tapegrad/cpu/isa.h>

#include <limits>

namespace tg::cpu::TG_ISA_NS {

inline constexpr int kLanes = 16;
inline constexpr int kWide = 4 * kLanes;  // of one chain of additions, each would wait for the one before

// sum over i < n of f(i), in C.
template <class C, class F> inline C lane_sum(int64_t n, F&& f) {
  C lane[kWide] = {};
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide)
    for (int k = 0; k < kWide; ++k) lane[k] += f(i + k);
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lane[k] += f(i + k);
  for (int k = 0; i + k < n; ++k) lane[k] += f(i + k);
  for (int half = kWide / 2; half; half /= 2)
    for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
  return lane[0];
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
// max over i < n of x[i] where NaN may be passed over, as it comes back in a sum of exponentials; n >= 1. In C.
template <class C, class T> inline C top_of(int64_t n, const T* x) {
  C lane[kWide];
  for (C& l : lane) l = C(x[0]);
  const auto larger = [](C a, C b) { return a < b ? b : a; };
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide)
    for (int64_t k = 0; k < kWide; ++k) lane[k] = larger(lane[k], C(x[i + k]));
  for (int64_t k = 0; i + k < n; ++k) lane[k] = larger(lane[k], C(x[i + k]));
  for (int64_t half = kWide / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) lane[k] = larger(lane[k], lane[k + half]);
  return lane[0];
}

}  // namespace tg::cpu::TG_ISA_NS
