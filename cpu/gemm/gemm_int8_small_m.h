// Rows of A and columns of B are contiguous in k. B is read once, in place, with lanes along k.
#pragma once
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/runtime/thread_pool.h>
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/scratch.h>

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace tg::cpu::TG_ISA_NS::small_m {
inline constexpr int64_t kRows = 16;  // maximum
inline constexpr int kColumns = 4;    // columns of B at once
inline constexpr int64_t kBytes = 1 << 16;

struct Madd {
  using Vector = __m256i;
  using OfA = int16_t;
  static constexpr int64_t kElements = 16;
  static constexpr int32_t kOffset = 0;
  static constexpr int kRowsAtOnce = 2;
  static constexpr bool kSixes = false;  // 8 accumulators hide the latency of the add
  static Vector load_b(const int8_t* b) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
  }
  static Vector load(const OfA* a) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)); }
  static void add(Vector& sum, Vector a, Vector b) {
    Vector products;
    asm("vpmaddwd %2, %1, %0" : "=x"(products) : "x"(a), "x"(b));
    sum = _mm256_add_epi32(sum, products);
  }
};
// vpdpbusd multiplies unsigned by signed: 128 is added to B, and its product with A's row subtracted.
struct Vex {
  using Vector = __m256i;
  using OfA = int8_t;
  static constexpr int64_t kElements = 32;
  static constexpr int32_t kOffset = 128;
  static constexpr int kRowsAtOnce = 2;
  static constexpr bool kSixes = true;
  static Vector load_b(const int8_t* b) {
    return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), _mm256_set1_epi8(-128));
  }
  static Vector load(const OfA* a) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)); }
  static void add(Vector& sum, Vector a, Vector b) { asm("%{vex%} vpdpbusd %1, %2, %0" : "+x"(sum) : "x"(a), "x"(b)); }
};
inline int32_t reduce_add(__m256i x) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
#if TG_ISA_LEVEL == 4
struct Evex {
  using Vector = __m512i;
  using OfA = int8_t;
  static constexpr int64_t kElements = 64;
  static constexpr int32_t kOffset = 128;
  static constexpr int kRowsAtOnce = 4;
  static Vector load_b(const int8_t* b) { return _mm512_xor_si512(_mm512_loadu_si512(b), _mm512_set1_epi8(-128)); }
  static Vector load(const OfA* a) { return _mm512_loadu_si512(a); }
  static void add(Vector& sum, Vector a, Vector b) { asm("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b)); }
};
inline int32_t reduce_add(__m512i x) {
  return reduce_add(_mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}
#endif

template <class Dot, int R, int N>
void tile(int64_t k, const typename Dot::OfA* a, int64_t lda, const int8_t* b, int64_t ldb, const int32_t* starts,
          int32_t* sums, int64_t ld) {
  const int64_t whole = k / Dot::kElements * Dot::kElements;
  alignas(64) int8_t rest[N * Dot::kElements] = {};
  for (int c = 0; c < N; ++c) std::memcpy(rest + c * Dot::kElements, b + c * ldb + whole, size_t(k - whole));
  typename Dot::Vector sum[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) sum[r][c] = typename Dot::Vector{};
  for (int64_t t = 0; t < k; t += Dot::kElements) {
    const int8_t* const y = t < whole ? b + t : rest;
    const int64_t ldy = t < whole ? ldb : Dot::kElements;
    typename Dot::Vector column[N];
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) column[c] = Dot::load_b(y + c * ldy);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto row = Dot::load(a + r * lda + t);
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) Dot::add(sum[r][c], row, column[c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) sums[r * ld + c] = int32_t(uint32_t(starts[r]) + uint32_t(reduce_add(sum[r][c])));
}

inline thread_local Scratch t_rows, t_sums;
template <class Dot>
void multiply(int64_t m, int64_t n, int64_t k, MatView<int8_t> a, MatView<int8_t> b,
              FunctionRef<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)> store, bool parallel) {
  constexpr int kR = Dot::kRowsAtOnce;
  const int64_t lda = (k + 63) / 64 * 64;
  auto* const rows = t_rows.get<typename Dot::OfA>(m * lda);
  int32_t starts[kRows];
  for (int64_t i = 0; i < m; ++i) {
    uint32_t all = 0;
    for (int64_t t = 0; t < k; ++t) {
      const int8_t x = a.p[i * a.row + t];
      rows[i * lda + t] = x, all += uint32_t(x);
    }
    std::fill(rows + i * lda + k, rows + (i + 1) * lda, typename Dot::OfA(0));
    starts[i] = int32_t(0u - uint32_t(Dot::kOffset) * all);
  }
  const int64_t width = std::clamp<int64_t>(kBytes / std::max<int64_t>(k, 1) / kColumns * kColumns, kColumns, 1024);
  for_tiles(parallel, (n + width - 1) / width, [&](int64_t s) {
    const int64_t j = s * width, cols = std::min(width, n - j);
    int32_t* const sums = t_sums.get<int32_t>(m * width);
    for (int64_t c = 0; c < cols; c += c + kColumns <= cols ? kColumns : 1)
      for (int64_t i = 0; i < m;) {
        const int64_t left = m - i, r = left >= kR ? kR : left >= 2 ? 2 : 1;
        const auto run = c + kColumns > cols ? (r == kR  ? tile<Dot, kR, 1>
                                                : r == 2 ? tile<Dot, 2, 1>
                                                         : tile<Dot, 1, 1>)
                                             : (r == kR  ? tile<Dot, kR, kColumns>
                                                : r == 2 ? tile<Dot, 2, kColumns>
                                                         : tile<Dot, 1, kColumns>);
        run(k, rows + i * lda, lda, b.p + (j + c) * b.col, b.col, starts + i, sums + i * width + c, width);
        i += r;
      }
    for (int64_t i = 0; i < m; ++i) store(i, j, cols, sums + i * width);
  });
}
}  // namespace tg::cpu::TG_ISA_NS::small_m
