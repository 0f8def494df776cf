// Register tiles and packing of the f32 product (cpu/gemm/gemm.cpp, its only user) for AVX2 and AVX-512, in the
// compiler's vector extensions. Every function but dot_tile gives an element one chain of multiply-adds over ascending
// k, whatever the tile around it; cuts, threads and memory are the caller's business.
#pragma once
#include <tapegrad/cpu/gemm.h>
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm/gemm_packed_avx512.h>
#endif

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tg::cpu::TG_ISA_NS::micro {
#if TG_ISA_LEVEL == 4
inline constexpr int kLanes = 16, kRows = 12;
#else
inline constexpr int kLanes = 8, kRows = 6;
#endif
inline constexpr int kCols = 2 * kLanes;  // kRows x kCols sums fill all but a few of the vector registers
typedef float V __attribute__((vector_size(4 * kLanes)));
typedef V AnyV __attribute__((aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
inline V load(const float* p) { return *reinterpret_cast<const AnyV*>(p); }
inline void store(float* p, V v) { *reinterpret_cast<AnyV*>(p) = v; }

// What a tile adds to its sums: y x[lane].
struct Floats {
  static void add(V& sum, float y, V x) { sum += y * x; }
};
#if TG_ISA_LEVEL == 4
// Each float is two bf16, of which the sum of products is added, by vdpbf16ps.
struct Bf16Pairs {
  static void add(V& sum, float y, V x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(Bits{} + __builtin_bit_cast(uint32_t, y)), "v"(x));
  }
};
#endif
// C (R x W vectors, rows ldc apart) = or += A B. Element (r, t) of A at a[r * ar + t * ak], row t of B at b + t * bk.
template <int R, int W, class Way = Floats>
void tile(int64_t k, const float* a, int64_t ar, int64_t ak, const float* b, int64_t bk, float* c, int64_t ldc,
          bool add) {
  V sum[R][W] = {};
  const float* row[(R + 2) / 3];  // one pointer for three rows: offsets 0, ar and 2 ar are x86 addresses
#pragma GCC unroll 4
  for (int r = 0; r < R; r += 3, a += 3 * ar) row[r / 3] = a;
  float* to = c;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, to += ldc) __builtin_prefetch(to, 1), __builtin_prefetch(to + W * kLanes - 1, 1);
#pragma GCC unroll 1
  for (; k > 0; --k, b += bk) {
    V x[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) x[w] = load(b + w * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float y = row[r / 3][r % 3 * ar];
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) Way::add(sum[r][w], y, x[w]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 3) row[r / 3] += ak;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) store(c + w * kLanes, add ? sum[r][w] + load(c + w * kLanes) : sum[r][w]);
}
// The first n < kLanes elements at p; the rest is 0, and is not touched.
class Lanes {
 public:
  explicit Lanes(int64_t n) {
#if TG_ISA_LEVEL == 4
    mask_ = __mmask16((1u << n) - 1);
#else
    alignas(32) int32_t bits[8];
    for (int i = 0; i < 8; ++i) bits[i] = i < n ? -1 : 0;
    mask_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits));
#endif
  }
#if TG_ISA_LEVEL == 4
  V load(const float* p) const { return _mm512_maskz_loadu_ps(mask_, p); }
  void store(float* p, V v) const { _mm512_mask_storeu_ps(p, mask_, v); }

 private:
  __mmask16 mask_;
#else
  V load(const float* p) const { return _mm256_maskload_ps(p, mask_); }
  void store(float* p, V v) const { _mm256_maskstore_ps(p, mask_, v); }

 private:
  __m256i mask_;
#endif
};
// tile<R, 1> for fewer columns than a vector has, of B as it lies and of C.
template <int R>
void narrow_tile(int64_t k, const float* a, int64_t ar, int64_t ak, const float* b, int64_t bk, float* c, int64_t ldc,
                 bool add, Lanes some) {
  V sum[R] = {};
  const float* row[(R + 2) / 3];
#pragma GCC unroll 4
  for (int r = 0; r < R; r += 3, a += 3 * ar) row[r / 3] = a;
#pragma GCC unroll 1
  for (; k > 0; --k, b += bk) {
    const V x = some.load(b);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r] += row[r / 3][r % 3 * ar] * x;
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 3) row[r / 3] += ak;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += ldc) some.store(c, add ? sum[r] + some.load(c) : sum[r]);
}
inline constexpr auto kNarrowTiles = []<int... R>(std::integer_sequence<int, R...>) {
  return std::array<decltype(&narrow_tile<1>), sizeof...(R)>{narrow_tile<R + 1>...};
}(std::make_integer_sequence<int, kRows>());

inline float sum_of(V v) {  // halves, quarters and so on
#if TG_ISA_LEVEL == 4
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
  const __m256 h = v;
#endif
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
// C (R x N) = or += A B, for rows of A and columns of B that are neighbours in k, ar and bc apart: lanes along k.
template <int R, int N>
void dot_tile(int64_t k, const float* a, int64_t ar, const float* b, int64_t bc, float* c, int64_t ldc, bool add) {
  V sum[R][N] = {};
  const auto add_products = [&](auto at) {
    V x[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) x[r] = at(a + r * ar);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      V y = at(b + n * bc);
      asm("" : "+v"(y));  // or it is loaded again for each row
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) sum[r][n] += x[r] * y;
    }
  };
#pragma GCC unroll 1
  for (; k >= kLanes; k -= kLanes, a += kLanes, b += kLanes) add_products(load);
  if (k > 0) add_products([some = Lanes(k)](const float* p) { return some.load(p); });
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) c[r * ldc + n] = add ? c[r * ldc + n] + sum_of(sum[r][n]) : sum_of(sum[r][n]);
}
// Rows of the tile for N columns: what the registers hold.
template <int N> inline constexpr int kDotRows = std::min(6, (TG_ISA_LEVEL == 4 ? 24 : 12) / N);

using Tile = decltype(&tile<1, 1>);
// kTiles<W>[R - 1].
template <int W, class Way = Floats>
inline constexpr auto kTiles = []<int... R>(std::integer_sequence<int, R...>) {
  return std::array<Tile, sizeof...(R)>{tile<R + 1, W, Way>...};
}(std::make_integer_sequence<int, kRows>());

// Element (i, j) of x becomes (j, i).
#if TG_ISA_LEVEL == 4
inline void transpose(Bits (&x)[16]) { packed::transpose(reinterpret_cast<__m512i(&)[16]>(x)); }
#else
inline void transpose(Bits (&x)[8]) {
  V a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_ps(V(x[2 * i]), V(x[2 * i + 1]));
    a[2 * i + 1] = _mm256_unpackhi_ps(V(x[2 * i]), V(x[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      b[4 * i + 2 * h] = _mm256_shuffle_ps(a[4 * i + h], a[4 * i + 2 + h], 0x44);
      b[4 * i + 2 * h + 1] = _mm256_shuffle_ps(a[4 * i + h], a[4 * i + 2 + h], 0xee);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = Bits(_mm256_permute2f128_ps(b[i], b[4 + i], 0x20));
    x[4 + i] = Bits(_mm256_permute2f128_ps(b[i], b[4 + i], 0x31));
  }
}
#endif
// kLanes rows of kLanes neighbours, ld apart, transposed: row i to to + i * step.
inline void copy_transposed(const float* p, int64_t ld, float* to, int64_t step) {
  Bits x[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) x[i] = Bits(load(p + i * ld));
  transpose(x);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * step, V(x[i]));
}
// kLanes columns of B, each of k neighbours and ld apart, to rows of `to`, kCols apart.
inline void pack_columns(int64_t k, const float* b, int64_t ld, float* to) {
  int64_t t = 0;
  for (; t + kLanes <= k; t += kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) __builtin_prefetch(b + t + i * ld + 64);
    copy_transposed(b + t, ld, to + t * kCols, kCols);
  }
  for (; t < k; ++t)
    for (int j = 0; j < kLanes; ++j) to[t * kCols + j] = b[j * ld + t];
}
// A panel of B (k x cols, cols <= kCols) to rows of kCols at `to`, with zeros after cols.
inline void pack_b(int64_t k, int64_t cols, MatView<float> b, float* to) {
  int64_t done = 0;
  if (b.col == 1) {
    if (cols == kCols) {
      for (int64_t t = 0; t < k; ++t)
        for (int w = 0; w < 2; ++w) {
          __builtin_prefetch(b.p + (t + 16) * b.row + w * kLanes);
          store(to + t * kCols + w * kLanes, load(b.p + t * b.row + w * kLanes));
        }
      return;
    }
  } else if (b.row == 1) {
    for (; done + kLanes <= cols; done += kLanes) pack_columns(k, b.p + done * b.col, b.col, to + done);
  }
  if (done == kCols) return;
  for (int64_t t = 0; t < k; ++t) {
    for (int64_t j = done; j < kCols; j += kLanes) store(to + t * kCols + j, V{});
    for (int64_t j = done; j < cols; ++j) to[t * kCols + j] = b.p[t * b.row + j * b.col];
  }
}

// Columns of B (k x cols) that are no neighbours in k, as rows of k at `to`.
inline void pack_transposed(int64_t k, int64_t cols, MatView<float> b, float* to) {
  int64_t done = 0;
  if (b.col == 1)
    for (; done + kLanes <= cols; done += kLanes) {
      int64_t t = 0;
      for (; t + kLanes <= k; t += kLanes) copy_transposed(b.p + t * b.row + done, b.row, to + done * k + t, k);
      for (; t < k; ++t)
        for (int64_t j = done; j < done + kLanes; ++j) to[j * k + t] = b.p[t * b.row + j];
    }
  for (int64_t j = done; j < cols; ++j)
    for (int64_t t = 0; t < k; ++t) to[j * k + t] = b.p[t * b.row + j * b.col];
}

// Rows of A (m x k) in scratch: panels of kRows x k elements, where element (r, t) of a panel is at r * row + t * col.
inline MatView<float> packed_a(MatView<float> a, int64_t k, const float* at) {
  return a.row == 1 ? MatView<float>{at, 1, kRows} : MatView<float>{at, k, 1};
}
inline MatView<float> pack_a(int64_t m, int64_t k, MatView<float> a, float* to) {
  if (a.row == 1) {  // neighbours down a column stay neighbours
    for (int64_t t = 0; t < k; ++t) {
      int64_t i = 0;
      for (; i + kRows <= m; i += kRows)
        std::memcpy(to + i * k + t * kRows, a.p + t * a.col + i, kRows * sizeof(float));
      std::memcpy(to + i * k + t * kRows, a.p + t * a.col + i, size_t(m - i) * sizeof(float));
    }
    return packed_a(a, k, to);
  }
  for (int64_t i = 0; i < m; ++i) {
    if (a.col == 1)
      std::memcpy(to + i * k, a.p + i * a.row, size_t(k) * sizeof(float));
    else
      for (int64_t t = 0; t < k; ++t) to[i * k + t] = a.p[i * a.row + t * a.col];
  }
  return packed_a(a, k, to);
}
}  // namespace tg::cpu::TG_ISA_NS::micro
