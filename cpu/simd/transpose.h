// Transposes of square blocks, a vector per row.
#pragma once
#include <tapegrad/cpu/simd/isa.h>

#if TG_ISA_LEVEL >= 3
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tg::cpu::TG_ISA_NS {
namespace transposes {
// Lower, or upper, words of each 128 bits.
template <class Word, bool kUpper, class V> inline V interleave(const V& x, const V& y) {
  typedef Word Words __attribute__((vector_size(sizeof(V))));
  constexpr int kAll = sizeof(V) / sizeof(Word), kEach = 16 / sizeof(Word), kFirst = kUpper ? kEach / 2 : 0;
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return V(
        __builtin_shufflevector(Words(x), Words(y), (I / kEach * kEach + kFirst + I % kEach / 2 + I % 2 * kAll)...));
  }(std::make_integer_sequence<int, kAll>());
}
// Within each 128 bits.
template <class V, size_t N> inline void interleave_fours(const V (&x)[N], V (&b)[N]) {
  V a[N];
#pragma GCC unroll 8
  for (size_t i = 0; i < N; i += 2)
    a[i] = interleave<uint32_t, false>(x[i], x[i + 1]), a[i + 1] = interleave<uint32_t, true>(x[i], x[i + 1]);
#pragma GCC unroll 4
  for (size_t i = 0; i < N; i += 4)
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
      b[i + 2 * h] = interleave<uint64_t, false>(a[i + h], a[i + 2 + h]);
      b[i + 2 * h + 1] = interleave<uint64_t, true>(a[i + h], a[i + 2 + h]);
    }
}
template <int kEach, class V> inline void transpose_lanes(const V* b, V* x) {
#pragma GCC unroll 4
  for (int i = 0; i < kEach; ++i) {
    if constexpr (sizeof(V) == 16) x[i] = b[i];
#if TG_ISA_LEVEL == 4
    if constexpr (sizeof(V) == 64) {
      const __m512i p = __m512i(b[i]), q = __m512i(b[kEach + i]), r = __m512i(b[2 * kEach + i]),
                    s = __m512i(b[3 * kEach + i]);
      const __m512i even0 = _mm512_shuffle_i32x4(p, q, 0x88), odd0 = _mm512_shuffle_i32x4(p, q, 0xdd);
      const __m512i even1 = _mm512_shuffle_i32x4(r, s, 0x88), odd1 = _mm512_shuffle_i32x4(r, s, 0xdd);
      x[i] = V(_mm512_shuffle_i32x4(even0, even1, 0x88)), x[kEach + i] = V(_mm512_shuffle_i32x4(odd0, odd1, 0x88));
      x[2 * kEach + i] = V(_mm512_shuffle_i32x4(even0, even1, 0xdd));
      x[3 * kEach + i] = V(_mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
#endif
#if TG_ISA_LEVEL >= 3
    if constexpr (sizeof(V) == 32) {
      const __m256i p = __m256i(b[i]), q = __m256i(b[kEach + i]);
      x[i] = V(_mm256_permute2x128_si256(p, q, 0x20)), x[kEach + i] = V(_mm256_permute2x128_si256(p, q, 0x31));
    }
#endif
  }
}
}  // namespace transposes

template <class T, class V, size_t N> inline void transpose_words(V (&x)[N]) {
  using namespace transposes;
  static_assert(N * sizeof(T) == sizeof(V));
  V b[N];
  if constexpr (sizeof(T) == 4) {
    interleave_fours(x, b);
    transpose_lanes<4>(b, x);
  } else {
#pragma GCC unroll 4
    for (size_t i = 0; i < N; i += 2)
      b[i] = interleave<uint64_t, false>(x[i], x[i + 1]), b[i + 1] = interleave<uint64_t, true>(x[i], x[i + 1]);
    transpose_lanes<2>(b, x);
  }
}

}  // namespace tg::cpu::TG_ISA_NS
