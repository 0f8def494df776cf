// AVX2 in the layouts of gemm_packed_avx512.h: int8 quads for vpdpbusd (AVX-VNNI), or int16 pairs for vpmaddwd, whose
// sums of two int8 products cannot overflow.
#pragma once
#include <tapegrad/cpu/gemm/gemm_packed.h>
#include <tapegrad/cpu/simd/transpose.h>

namespace tg::cpu::TG_ISA_NS::packed {
inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store256(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline __m256i widened(const int8_t* p) {  // 16 elements
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Converts a step between the layouts of A and B.
template <int Flip> void swap_layout(const std::byte* from, std::byte* to) {
  for (int64_t tile = 0; tile < kStep; tile += kStep / 2)
    for (int64_t i = 0; i < 16; i += 8)
      for (int64_t j = 0; j < 16; j += 8) {
        __m256i x[8];
#pragma GCC unroll 8
        for (int64_t r = 0; r < 8; ++r) x[r] = load256(from + tile + (i + r) * kRow + 4 * j);
        transpose_words<uint32_t>(x);
#pragma GCC unroll 8
        for (int64_t r = 0; r < 8; ++r)
          store256(to + tile + (j + r) * kRow + 4 * i, _mm256_xor_si256(x[r], _mm256_set1_epi8(char(Flip))));
      }
}
template <bool Wide> void pack_rows(MatView<int8_t> v, std::byte* to) {
  for (int64_t i = 0; i < kSide; ++i, to += kRow) {
    const int8_t* const p = v.p + i * v.row;
    store256(to, Wide ? widened(p) : load256(p));
    store256(to + 32, Wide ? widened(p + 16) : load256(p + 32));
  }
}
// Contiguous columns, in B's layout.
template <bool Wide, int Flip> void pack_lines(MatView<int8_t> v, std::byte* to) {
  const auto store = [&](int64_t at, __m256i x) {
    store256(to + at, _mm256_xor_si256(x, _mm256_set1_epi8(char(Flip))));
  };
  for (int64_t t = 0; t < 16; ++t, to += kRow) {
    if constexpr (Wide) {
#pragma GCC unroll 2
      for (int64_t i = 0; i < 2; ++i) {  // 16 rows
        const int8_t* const p = v.p + 2 * t * v.col + 16 * i;
        const __m256i x = widened(p), y = widened(p + v.col);
        const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
        store(i * kStep / 2, _mm256_permute2x128_si256(low, high, 0x20));
        store(i * kStep / 2 + 32, _mm256_permute2x128_si256(low, high, 0x31));
      }
    } else {
      const int8_t* const p = v.p + 4 * t * v.col;
      const __m256i x = load256(p), y = load256(p + v.col), z = load256(p + 2 * v.col), w = load256(p + 3 * v.col);
      // Two calls: rows [0, 8) and [16, 24); then [8, 16) and [24, 32).
      const auto fours = [&](int64_t at, __m256i xy, __m256i zw) {
        const __m256i low = _mm256_unpacklo_epi16(xy, zw), high = _mm256_unpackhi_epi16(xy, zw);
        store(at, _mm256_permute2x128_si256(low, high, 0x20));
        store(at + kStep / 2, _mm256_permute2x128_si256(low, high, 0x31));
      };
      fours(0, _mm256_unpacklo_epi8(x, y), _mm256_unpacklo_epi8(z, w));
      fours(32, _mm256_unpackhi_epi8(x, y), _mm256_unpackhi_epi8(z, w));
    }
  }
}
template <bool Wide, bool OfB, int Flip>
void pack_step256(MatView<int8_t> v, int64_t rows, int64_t depth, std::byte* to, int64_t /*part*/) {
  constexpr int64_t kLine = Wide ? 32 : 64;
  alignas(32) int8_t copy[kSide * kLine];
  alignas(32) std::byte other[kStep];
  const bool down = v.col != 1 && v.row == 1;
  if (rows < kSide || depth < kLine || (v.col != 1 && v.row != 1)) {
    std::memset(copy, 0, sizeof copy);
    if (down)
      for (int64_t t = 0; t < depth; ++t) std::memcpy(copy + t * kSide, v.p + t * v.col, size_t(rows));
    else
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t t = 0; t < depth; ++t) copy[i * kLine + t] = v.p[i * v.row + t * v.col];
    v = down ? MatView<int8_t>{copy, 1, kSide} : MatView<int8_t>{copy, kLine, 1};
  }
  if (down && OfB) return pack_lines<Wide, Flip>(v, to);
  if (!down && !OfB) return pack_rows<Wide>(v, to);
  if (down)
    pack_lines<Wide, 0>(v, other);
  else
    pack_rows<Wide>(v, other);
  swap_layout<Flip>(other, to);
}

// -128 times the sum of each row of A.
inline void starts_of_rows(int64_t steps, const std::byte* a, int32_t* to) {
  const __m256i ones = _mm256_set1_epi8(1), wide_ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < kSide; ++r, a += kRow) {
    __m256i sum = _mm256_setzero_si256();
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t h = 0; h < kRow; h += 32)
        sum =
            _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(ones, load256(a + s * kStep + h)), wide_ones));
    alignas(32) uint32_t lanes[8];
    store256(lanes, sum);
    uint32_t all = 0;
    for (const uint32_t lane : lanes) all += lane;
    to[r] = int32_t(0u - 128u * all);
  }
}

template <class Dot>
void block256(int64_t steps, int64_t rows, const std::byte* a, const std::byte* b, int32_t* c, int64_t ld, bool add,
              const int32_t* starts) {
  for (int64_t h = 0; h < 2; ++h, b += kStep / 2, c += 16)
    for (int64_t r = 0; r < rows;) {  // 32 rows: 4 times 6, twice 4
      const bool six = Dot::kSixes && r < 24;
      (six ? dot_rows<Dot, 6, 32, int32_t> : dot_rows<Dot, 4, 32, int32_t>)(steps, a + r * kRow, b, c + r * ld, ld, add,
                                                                            starts ? starts + r : nullptr);
      r += six ? 6 : 4;
    }
}
}  // namespace tg::cpu::TG_ISA_NS::packed
