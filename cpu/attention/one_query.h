// The products of attention for one query, as in decoding (cpu/attention/attention.cpp). Their time is that of reading
// keys and values: each row once, in the order of memory, in its own type.
#pragma once
#include <tapegrad/core/half.h>
#include <tapegrad/cpu/isa.h>
#include <tapegrad/cpu/sums.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tg::cpu::TG_ISA_NS::one_query {
template <class C> struct LanesOf {
  typedef C type __attribute__((vector_size(kLanes * sizeof(C))));
};
template <class C> using Lanes = typename LanesOf<C>::type;
static_assert(kLanes == 16);

template <class T> inline void load(const T* p, Lanes<compute_t<T>>& x) {
  if constexpr (std::is_same_v<T, bf16>) {
    typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
    Halves h;
    std::memcpy(&h, p, sizeof h);
    x = reinterpret_cast<Lanes<float>>(__builtin_convertvector(h, Lanes<uint32_t>) << 16);
  } else {
    std::memcpy(&x, p, sizeof x);
  }
}

// s[j] = q . row j of keys, `ld` apart; a row has hs elements.
template <class C, class T> void scores(const C* q, const T* keys, int64_t ld, int64_t n, int64_t hs, C* s) {
  for (int64_t j = 0; j < n; ++j, keys += ld) {
    Lanes<C> sum = {}, a, b;
    int64_t i = 0;
    for (; i + kLanes <= hs; i += kLanes) load(q + i, a), load(keys + i, b), sum += a * b;
    C rest = 0;
    for (; i < hs; ++i) rest += q[i] * C(keys[i]);
    const auto eight = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    s[j] = rest + ((four[0] + four[2]) + (four[1] + four[3]));
  }
}
// y of N kLanes elements: sum of s[j] times row j of values. Chains of sums are short, so that they round less.
template <int N, class C, class T> void weigh_lanes(const C* s, const T* values, int64_t ld, int64_t n, C* y) {
  constexpr int64_t kChain = 128;
  Lanes<C> all[N] = {}, x;
  for (int64_t j0 = 0; j0 < n; j0 += kChain) {
    Lanes<C> sum[N] = {};
    for (int64_t j = j0; j < std::min(n, j0 + kChain); ++j, values += ld)
#pragma GCC unroll 4
      for (int k = 0; k < N; ++k) load(values + k * kLanes, x), sum[k] += s[j] * x;
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) all[k] += sum[k];
  }
  std::memcpy(y, all, sizeof all);
}
template <class C, class T> void weigh(const C* s, const T* values, int64_t ld, int64_t n, int64_t hs, C* y) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= hs; i += 4 * kLanes) weigh_lanes<4>(s, values + i, ld, n, y + i);
  for (; i + kLanes <= hs; i += kLanes) weigh_lanes<1>(s, values + i, ld, n, y + i);
  for (; i < hs; ++i) {
    y[i] = 0;
    for (int64_t j = 0; j < n; ++j) y[i] += s[j] * C(values[j * ld + i]);
  }
}
}  // namespace tg::cpu::TG_ISA_NS::one_query
