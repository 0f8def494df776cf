// GEMM of at most about one vector of columns.
#pragma once
#include <tapegrad/cpu/gemm/gemm_tiles.h>

namespace tg::cpu::TG_ISA_NS::small_n {
using namespace tiles;

inline float reduce_add(Vector<float> v) {  // horizontal add, by halves
#if TG_ISA_LEVEL == 4
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
  const __m256 h = v;
#endif
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline double reduce_add(Vector<double> v) {
#if TG_ISA_LEVEL == 4
  const __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
#else
  const __m256d h = v;
#endif
  const __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
  return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}
// Eight reduce_add(), bit for bit, with shared shuffles.
inline void reduce_add_8(const Vector<float> (&v)[8], float* to) {
#if TG_ISA_LEVEL == 4
  __m512 a[4], b[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    a[i] = _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44) + _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    b[i] = _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88) + _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd);
  const __m512 c = _mm512_shuffle_ps(b[0], b[1], 0x44) + _mm512_shuffle_ps(b[0], b[1], 0xee);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, c + _mm512_permute_ps(c, 0xb1))));
#else
  __m256 a[4], b[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    a[i] = _mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x20) + _mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x31);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    b[i] = _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44) + _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(_mm256_hadd_ps(b[0], b[1]), order));
#endif
}
inline void reduce_add_8(const Vector<double> (&v)[8], double* to) {
  for (int i = 0; i < 8; ++i) to[i] = reduce_add(v[i]);
}

// Contiguous in k, `across` apart; a column's vectors are `along` apart.
template <class T> struct Columns {
  const T* p;
  int64_t across, along;
};
struct Part {  // range of k
  bool first, last;
};
// Vectors per step of k: 64 bytes at any level, so that levels 3 and 4 have one order of sums.
inline constexpr int kStepVectors = 64 / int(kVectorBytes);
template <class T> inline constexpr int kStep = kStepVectors * kLanes<T>;
// C (R x N) = or += A B, lanes along k; rows of A are contiguous. `sums` (R, N): accumulators between ranges of k.
template <int R, int N, class T>
void dot_tile(int64_t k, const T* a, int64_t ar, const T* b, int64_t across, int64_t along, Part part, T* sums, T* c,
              int64_t ldc, bool add) {
  constexpr int L = kLanes<T>, P = kStepVectors, kAll = R * N;
  Vector<T> sum[R][N][P] = {};
  if (!part.first)
#pragma GCC unroll 24
    for (int i = 0; i < kAll * P; ++i) sum[i / P / N][i / P % N][i % P] = load_vector(sums + i * L);
  const auto add_products = [&](auto at) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int q = 0; q < P; ++q) {
      Vector<T> x[R];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) x[r] = at(a + r * ar + q * L, q);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        Vector<T> y = at(b + n * across + q * along, q);
        asm("" : "+v"(y));  // prevents reloads per row
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) sum[r][n][q] = fma(x[r], y, sum[r][n][q]);
      }
    }
  };
#pragma GCC unroll 1
  for (; k >= kStep<T>; k -= kStep<T>, a += kStep<T>, b += P * along)
    add_products([](const T* p, int) { return load_vector(p); });
  if (k > 0) {
    const Lanes<T> some[] = {Lanes<T>(std::min<int64_t>(k, L)), Lanes<T>(std::max<int64_t>(k - L, 0))};
    add_products([&](const T* p, int q) { return q * L < k ? some[q].load(p) : Vector<T>{}; });
  }
  if (!part.last) {
#pragma GCC unroll 24
    for (int i = 0; i < kAll * P; ++i) store_vector(sums + i * L, sum[i / P / N][i / P % N][i % P]);
    return;
  }
  const auto joined = [&](int i) {
    auto& parts = sum[i / N][i % N];
    return P == 2 ? parts[0] + parts[P - 1] : parts[0];
  };
  T total[(kAll + 7) / 8 * 8];
#pragma GCC unroll 4
  for (int i = 0; i < kAll; i += 8) {
    Vector<T> eight[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) eight[j] = i + j < kAll ? joined((i + j) % kAll) : Vector<T>{};
    reduce_add_8(eight, total + i);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) c[r * ldc + n] = add ? c[r * ldc + n] + total[r * N + n] : total[r * N + n];
}
// The accumulators fit 8 (AVX2) or 24 (AVX-512) registers.
template <int N> inline constexpr int kDotRows = TG_ISA_LEVEL == 4 ? std::min(6, 24 / N) : N >= 4 ? 1 : N == 2 ? 3 : 4;

#if TG_ISA_LEVEL == 4
// Eight columns of 16 rows: x[i] holds rows i % 4 + i / 4 * 8 and that + 4, and becomes column i.
inline void transpose_pairs(__m512 (&x)[8]) {
  __m512 b[8];
  transposes::interleave_fours(x, b);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_f32x4(b[i], b[4 + i], 0x88);
    x[4 + i] = _mm512_shuffle_f32x4(b[i], b[4 + i], 0xdd);
  }
}
#endif
template <class T> inline void copy_transposed(const T* p, int64_t ld, int64_t cols, T* to, int64_t step) {
  constexpr int L = kLanes<T>;
  const Lanes<T> some(cols);
#if TG_ISA_LEVEL == 4
  if constexpr (std::is_same_v<T, float>)
    if (cols <= L / 2) {
      const auto half = __mmask8((1u << cols) - 1);
      __m512 x[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const T* const row = p + (i % 4 + i / 4 * 8) * ld;
        x[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, row)),
                                  _mm256_maskz_loadu_ps(half, row + 4 * ld), 1);
      }
      transpose_pairs(x);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i)
        if (i < cols) _mm512_storeu_ps(to + i * step, x[i]);
      return;
    }
#endif
  Bits<T> x[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) x[i] = Bits<T>(some.load(p + i * ld));
  transpose_words<T>(x);
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i)
    if (i < cols) store_vector(to + i * step, Vector<T>(x[i]));
}
// B (k x cols, not contiguous in k): per kLanes of k, a vector per column.
template <class T> inline Columns<T> pack_columns(int64_t k, int64_t cols, MatView<T> b, T* to) {
  constexpr int L = kLanes<T>;
  int64_t t = 0;
  if (b.col == 1)
    for (; t + L <= k; t += L)
      for (int64_t j = 0; j < cols; j += L)
        copy_transposed(b.p + t * b.row + j, b.row, std::min<int64_t>(L, cols - j), to + t * cols + j * L, L);
  for (; t < k; ++t)
    for (int64_t j = 0; j < cols; ++j) to[(t / L * cols + j) * L + t % L] = b.p[t * b.row + j * b.col];
  return {to, L, cols * L};
}

inline constexpr int64_t kRowsAtOnce = 24;
template <class T> inline constexpr int64_t kPart = 16384 / 8 / sizeof(T);

// N columns at a time, rows [i, end), k range [t, t + depth). Returns the first column left.
template <int N, class T>
int64_t dot_columns(const Product<T>& p, Columns<T> b, int64_t t, int64_t depth, int64_t i, int64_t end, int64_t j,
                    T* sums) {
  constexpr int R = kDotRows<N>, L = kLanes<T>;
  const Part part{t == 0, t + depth == p.k};
  b.p += t / L * b.along;
  for (; j + N <= p.n; j += N)
    for (int64_t r = i, rows; r < end; r += rows) {
      rows = r + R <= end ? R : R > 2 && r + 2 <= end ? 2 : 1;
      const auto run = rows == R ? dot_tile<R, N, T> : rows == 2 ? dot_tile<2, N, T> : dot_tile<1, N, T>;
      run(depth, p.a.p + r * p.a.row + t, p.a.row, b.p + j * b.across, b.across, b.along, part,
          sums + (j * kRowsAtOnce + (r - i) * N) * kStep<T>, p.c + r * p.ldc + j, p.ldc, p.o.accumulate);
    }
  return j;
}
// Lanes along k: rows of A are contiguous.
template <class T> bool fits_dot(const Product<T>& p) {
  return p.a.col == 1 && (p.n < kStep<T> || (p.n == kStep<T> && p.b.row == 1));
}
template <class T> void run_dot(const Product<T>& p, bool parallel) {
  constexpr int64_t L = kLanes<T>;
  Columns<T> b{p.b.p, p.b.col, L};
  if (p.b.row != 1 && p.k > 1)
    b = pack_columns(p.k, p.n, p.b, t_shared.get<T>(ceil_div(p.k, kStep<T>) * kStep<T> * p.n));
  for_tiles(parallel, ceil_div(p.m, kRowsAtOnce), [&](int64_t tile) {
    const int64_t i = tile * kRowsAtOnce, end = std::min(p.m, i + kRowsAtOnce);
    T* const sums = t_own.get<T>(kRowsAtOnce * p.n * kStep<T>);
    for (int64_t t = 0; t < p.k; t += kPart<T>) {
      const int64_t depth = std::min(kPart<T>, p.k - t);
      int64_t j = 0;
      if constexpr (kStepVectors == 1) j = dot_columns<8>(p, b, t, depth, i, end, j, sums);
      j = dot_columns<4>(p, b, t, depth, i, end, j, sums);
      j = dot_columns<2>(p, b, t, depth, i, end, j, sums);
      dot_columns<1>(p, b, t, depth, i, end, j, sums);
    }
    p.finish(i, end - i, 0, p.n);
  });
}
// Lanes along m: A's columns are contiguous. Computes C^T.
template <class T> bool fits_axpy(const Product<T>& p) { return p.a.row == 1 && p.n <= kLanes<T>; }
template <class T> void run_axpy(const Product<T>& p, bool parallel) {
  for_tiles(parallel, ceil_div(p.m, kCols<T>), [&](int64_t t) {
    const int64_t i = t * kCols<T>, rows = std::min<int64_t>(kCols<T>, p.m - i);
    T* const packed = rows < kCols<T> ? t_own.get<T>(kDepth * kCols<T>) : nullptr;
    alignas(64) T buffer[kLanes<T> * kCols<T>];  // (n, rows)
    for (int64_t q = 0; q < blocks(p.k); ++q) {
      const Block l = block(p.k, q);
      const MatView<T> at = p.a.at(i, l.first).transposed(), bt = p.b.at(l.first, 0).transposed();
      if (packed) pack_b(l.depth, rows, at, packed);
      for (int64_t j = 0; j < p.n; j += kRows)
        kTiles<2, ScalarFma<T>>[size_t(std::min<int64_t>(kRows, p.n - j) - 1)](
            l.depth, bt.p + j * bt.row, bt.row, bt.col, packed ? packed : at.p, packed ? kCols<T> : at.row,
            buffer + j * kCols<T>, kCols<T>, q > 0);
    }
    for (int64_t r = 0; r < rows; ++r) {
      T* const c = p.c + (i + r) * p.ldc;
      for (int64_t j = 0; j < p.n; ++j)
        c[j] = p.o.accumulate ? c[j] + buffer[j * kCols<T> + r] : buffer[j * kCols<T> + r];
    }
    p.finish(i, rows, 0, p.n);
  });
}
}  // namespace tg::cpu::TG_ISA_NS::small_n
