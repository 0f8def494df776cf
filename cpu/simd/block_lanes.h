// Dequantizes a block per lane: bytes of kVector<float> rows are transposed first.
#pragma once
#include <immintrin.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/ops/quantized/block_format.h>

namespace tg::cpu::TG_ISA_NS {

// Byte i of each lane's block is at p + i * kVector<float>.
struct BlockLanes {
  using Int = Vector<int32_t>;
  using Real = Vector<float>;
  const uint8_t* p;

  TG_INLINE Int byte(int at) const {
    const uint8_t* const from = p + at * kVector<float>;
#if TG_ISA_LEVEL == 4
    return reinterpret_cast<Int>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return reinterpret_cast<Int>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  }
  TG_INLINE Int bit(int at, int i) const { return byte(at + i / 8) >> i % 8 & 1; }
  TG_INLINE Real half(int at) const {
    const Int x = byte(at) | byte(at + 1) << 8;
#if TG_ISA_LEVEL == 4
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(x)));
#else
    const auto y = reinterpret_cast<__m256i>(x);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
#endif
  }
  TG_INLINE Real single(int at) const {
    return reinterpret_cast<Real>(byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24);
  }
  TG_INLINE static Real real(Int x) { return __builtin_convertvector(x, Real); }
  TG_INLINE static Real nf4(Int q) {
    alignas(64) static constexpr auto kValues = tg::detail::kNf4Values;
#if TG_ISA_LEVEL == 4
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(q), _mm512_load_ps(kValues.data()));
#else
    const auto at = reinterpret_cast<__m256i>(q);
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(kValues.data()), at);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(kValues.data() + 8), at);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
#endif
  }
};

// n >= 16 bytes at row[i] for each lane i become (n, kVector<float>).
inline void transpose_bytes(const uint8_t* const* row, int64_t n, uint8_t* to) {
  constexpr int L = int(kVector<float>);
  for (int64_t t = 0; t < n; t += 16) {
    const int64_t at = std::min(t, n - 16);
    __m128i x[2][L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) x[0][i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[i] + at));
#pragma GCC unroll 4
    for (int s = 0; 1 << s < L; ++s)
#pragma GCC unroll 8
      for (int i = 0; i < L / 2; ++i) {
        x[1 - s % 2][2 * i] = _mm_unpacklo_epi8(x[s % 2][i], x[s % 2][i + L / 2]);
        x[1 - s % 2][2 * i + 1] = _mm_unpackhi_epi8(x[s % 2][i], x[s % 2][i + L / 2]);
      }
    constexpr int last = L == 16 ? 0 : 1;
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at * L + i * 16), x[last][i]);
  }
}
// Calls put(i, x, y) for elements i and i + 1, i even, of a block per lane.
template <BlockFormat F, class Put> TG_INLINE inline void dequantize_lanes(const uint8_t* bytes, Put&& put) {
  using B = tg::detail::Block<F>;
  const BlockLanes b{bytes};
#pragma GCC unroll 16
  for (int run = 0; run < B::kRuns; ++run) {
    const auto s = B::scale(b, run);
#pragma GCC unroll 2
    for (int i = 0; i < B::kRun; i += 2) put(run * B::kRun + i, B::value(b, s, run, i), B::value(b, s, run, i + 1));
  }
}
// bf16(x), finite, in the upper half.
TG_INLINE inline Vector<uint32_t> rounded_to_bf16(Vector<float> x) {
  const auto u = reinterpret_cast<Vector<uint32_t>>(x);
  return u + 0x7fff + (u >> 16 & 1);
}

}  // namespace tg::cpu::TG_ISA_NS
