// f32 and f64 register tiles and packing in vector extensions. An element is one chain of FMAs over ascending k in any
// tile. Callers handle splits, threads and memory.
#pragma once
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/simd/transpose.h>

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tg::cpu::TG_ISA_NS::micro {
inline constexpr int kRows = TG_ISA_LEVEL == 4 ? 12 : 6;
template <class T> inline constexpr int kLanes = int(kVector<T>);
// Registers (C + B + A): AVX2 6 x 2 + 2 + 1 of 16; AVX-512 12 x 2 + 2 + 1 of 32.
template <class T> inline constexpr int kCols = 2 * kLanes<T>;
template <class T> using Bits = Vector<std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// L1 sets repeat every 4 KiB.
inline constexpr int64_t kL1Ways = 8;
template <class T> bool aliases_in_l1(int64_t stride) { return stride * int64_t(sizeof(T)) % 4096 == 0; }

template <class Number> struct ScalarFma {
  using T = Number;
  static void add(Vector<T>& sum, T y, Vector<T> x) { sum += y * x; }
};
#if TG_ISA_LEVEL == 4
// A float holds two bf16; vdpbf16ps adds their dot product.
struct Bf16Pairs {
  using T = float;
  static void add(Vector<T>& sum, T y, Vector<T> x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(Bits<T>{} + __builtin_bit_cast(uint32_t, y)), "v"(x));
  }
};
#endif
// C (R x W vectors, rows ldc apart) = or += A B: a[r * ar + t * ak], row t of B at b + t * bk.
template <int R, int W, class Fma, class T = typename Fma::T>
void tile(int64_t k, const T* a, int64_t ar, int64_t ak, const T* b, int64_t bk, T* c, int64_t ldc, bool add) {
  constexpr int L = kLanes<T>;
  Vector<T> sum[R][W] = {};
  // A pointer per three rows: x86 addresses encode offsets 0, ar and 2 ar.
  const T* row[(R + 2) / 3];
#pragma GCC unroll 4
  for (int r = 0; r < R; r += 3, a += 3 * ar) row[r / 3] = a;
  T* to = c;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, to += ldc) __builtin_prefetch(to, 1), __builtin_prefetch(to + W * L - 1, 1);
#pragma GCC unroll 1
  for (; k > 0; --k, b += bk) {
    Vector<T> x[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) x[w] = load_vector(b + w * L);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const T y = row[r / 3][r % 3 * ar];
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) Fma::add(sum[r][w], y, x[w]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 3) row[r / 3] += ak;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) store_vector(c + w * L, add ? sum[r][w] + load_vector(c + w * L) : sum[r][w]);
}
#if TG_ISA_LEVEL == 4
template <class T> class Lanes {
 public:
  explicit Lanes(int64_t n) : mask_(Mask((1u << n) - 1)) {}
  Vector<T> load(const T* p) const {
    if constexpr (kFloat)
      return _mm512_maskz_loadu_ps(mask_, p);
    else
      return _mm512_maskz_loadu_pd(mask_, p);
  }
  void store(T* p, Vector<T> v) const {
    if constexpr (kFloat)
      _mm512_mask_storeu_ps(p, mask_, v);
    else
      _mm512_mask_storeu_pd(p, mask_, v);
  }

 private:
  static constexpr bool kFloat = std::is_same_v<T, float>;
  using Mask = std::conditional_t<kFloat, __mmask16, __mmask8>;
  Mask mask_;
};
#else
template <class T> class Lanes {
 public:
  explicit Lanes(int64_t n) {
    alignas(32) std::conditional_t<kFloat, int32_t, int64_t> bits[kLanes<T>];
    for (int i = 0; i < kLanes<T>; ++i) bits[i] = i < n ? -1 : 0;
    mask_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits));
  }
  Vector<T> load(const T* p) const {
    if constexpr (kFloat)
      return _mm256_maskload_ps(p, mask_);
    else
      return _mm256_maskload_pd(p, mask_);
  }
  void store(T* p, Vector<T> v) const {
    if constexpr (kFloat)
      _mm256_maskstore_ps(p, mask_, v);
    else
      _mm256_maskstore_pd(p, mask_, v);
  }

 private:
  static constexpr bool kFloat = std::is_same_v<T, float>;
  __m256i mask_;
};
#endif
template <int R, class T>
void narrow_tile(int64_t k, const T* a, int64_t ar, int64_t ak, const T* b, int64_t bk, T* c, int64_t ldc, bool add,
                 Lanes<T> some) {
  Vector<T> sum[R] = {};
  const T* row[(R + 2) / 3];
#pragma GCC unroll 4
  for (int r = 0; r < R; r += 3, a += 3 * ar) row[r / 3] = a;
#pragma GCC unroll 1
  for (; k > 0; --k, b += bk) {
    const Vector<T> x = some.load(b);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r] += row[r / 3][r % 3 * ar] * x;
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 3) row[r / 3] += ak;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += ldc) some.store(c, add ? sum[r] + some.load(c) : sum[r]);
}
template <class T> inline constexpr auto kNarrowTiles = functions_of<kRows>([]<int R>() { return &narrow_tile<R, T>; });

// Per four steps of k a line of A, and every `every` of these a line of B.
template <class T> struct Next {
  Ahead<T> a, b;
  int64_t every = 1;
};
// tile() with contiguous A and packed B. Prefetches are spread over k: a burst takes all buffers for missing lines, and
// this panel's loads wait.
template <int R, bool kColumnsOfA, class T>
void streaming_tile(int64_t k, const T* a, int64_t ar, int64_t ak, const T* b, T* c, int64_t ldc, bool add,
                    Next<T>& next) {
  constexpr int L = kLanes<T>;
  Vector<T> sum[R][2] = {};
  const T* row[(R + 2) / 3];
#pragma GCC unroll 4
  for (int r = 0; r < R; r += 3, a += 3 * ar) row[r / 3] = a;
  const auto step = [&](int s) __attribute__((always_inline)) {
    const Vector<T> x[2] = {load_vector(b + 2 * s * L), load_vector(b + (2 * s + 1) * L)};
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const T y = kColumnsOfA ? row[0][r] : row[r / 3][r % 3 * ar + s];
      sum[r][0] += y * x[0], sum[r][1] += y * x[1];
    }
    if (kColumnsOfA) row[0] += ak;
  };
  const auto advance = [&](int steps) __attribute__((always_inline)) {
    b += 2 * steps * L;
#pragma GCC unroll 4
    for (int r = 0; r < R && !kColumnsOfA; r += 3) row[r / 3] += steps;
  };
  T* to = c;
#pragma GCC unroll 1
  for (int r = 0; r < R && k >= 4; ++r, k -= 4, to += ldc) {
    __builtin_prefetch(to, 1);
    step(0), step(1);
    __builtin_prefetch(to + 2 * L - 1, 1);
    step(2), step(3), advance(4);
  }
  Next<T> ahead = next;
  int64_t wait = ahead.every;
#pragma GCC unroll 1
  for (; k >= 4; k -= 4) {
    ahead.a.template prefetch<3>();
    step(0), step(1);
    if (--wait == 0) ahead.b.template prefetch<2>(), wait = ahead.every;
    step(2), step(3), advance(4);
  }
  next = ahead;
#pragma GCC unroll 1
  for (; k > 0; --k) step(0), advance(1);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) store_vector(c + w * L, add ? sum[r][w] + load_vector(c + w * L) : sum[r][w]);
}

template <int W, class Fma>
inline constexpr auto kTiles = functions_of<kRows>([]<int R>() { return &tile<R, W, Fma>; });

#if TG_ISA_LEVEL == 3
// Immediate offsets and k unrolled by 4 leave few instructions next to the FMAs.
template <int R, int W, class T> void packed_tile(int64_t k, const T* a, const T* b, T* c, int64_t ldc, bool add) {
  constexpr int L = kLanes<T>, kSteps = 4;
  Vector<T> sum[R][W] = {};
  T* to = c;
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r, to += ldc) __builtin_prefetch(to, 1), __builtin_prefetch(to + W * L - 1, 1);
  const auto step = [&](int s) __attribute__((always_inline)) {
    Vector<T> x[W];
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) x[w] = load_vector(b + s * kCols<T> + w * L);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int w = 0; w < W; ++w) sum[r][w] += a[s * kRows + r] * x[w];
  };
#pragma GCC unroll 1
  for (; k >= kSteps; k -= kSteps, a += kSteps * kRows, b += kSteps * kCols<T>) step(0), step(1), step(2), step(3);
#pragma GCC unroll 1
  for (; k > 0; --k, a += kRows, b += kCols<T>) step(0);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) store_vector(c + w * L, add ? sum[r][w] + load_vector(c + w * L) : sum[r][w]);
}
template <int W, class T>
inline constexpr auto kPackedTiles = functions_of<kRows>([]<int R>() { return &packed_tile<R, W, T>; });
#endif
template <int W, class T>
void run_tile(int64_t rows, int64_t k, MatView<T> a, const T* b, int64_t bk, T* c, int64_t ldc, bool add) {
#if TG_ISA_LEVEL == 3
  if (a.row == 1 && a.col == kRows && bk == kCols<T>)
    return kPackedTiles<W, T>[size_t(rows - 1)](k, a.p, b, c, ldc, add);
#endif
  kTiles<W, ScalarFma<T>>[size_t(rows - 1)](k, a.p, a.row, a.col, b, bk, c, ldc, add);
}

// Transposes kLanes contiguous rows of kLanes, ld apart, to rows `step` apart.
template <class T> inline void copy_transposed(const T* p, int64_t ld, T* to, int64_t step) {
  constexpr int L = kLanes<T>;
  Bits<T> x[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) x[i] = Bits<T>(load_vector(p + i * ld));
  transpose_words<T>(x);
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) store_vector(to + i * step, Vector<T>(x[i]));
}
// kLanes columns of B, contiguous in k and ld apart, become rows kCols apart.
template <class T> inline void pack_columns(int64_t k, const T* b, int64_t ld, T* to) {
  constexpr int L = kLanes<T>;
  int64_t t = 0;
  for (; t + L <= k; t += L) {
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) __builtin_prefetch(b + t + i * ld + 256 / int64_t(sizeof(T)));
    copy_transposed(b + t, ld, to + t * kCols<T>, kCols<T>);
  }
  for (; t < k; ++t)
    for (int j = 0; j < L; ++j) to[t * kCols<T> + j] = b[j * ld + t];
}
// A panel of B (k x cols, cols <= kCols) becomes zero-padded rows of kCols.
template <class T> inline void pack_b(int64_t k, int64_t cols, MatView<T> b, T* to) {
  constexpr int L = kLanes<T>;
  int64_t done = 0;
  if (b.col == 1) {
    if (cols == kCols<T>) {
      const int64_t ahead = aliases_in_l1<T>(b.row) ? kL1Ways / 2 : 16;
      for (int64_t t = 0; t < k; ++t)
        for (int w = 0; w < 2; ++w) {
          __builtin_prefetch(b.p + (t + ahead) * b.row + w * L);
          store_vector(to + t * kCols<T> + w * L, load_vector(b.p + t * b.row + w * L));
        }
      return;
    }
  } else if (b.row == 1) {
    for (; done + L <= cols; done += L) pack_columns(k, b.p + done * b.col, b.col, to + done);
  }
  if (done == kCols<T>) return;
  for (int64_t t = 0; t < k; ++t) {
    for (int64_t j = done; j < kCols<T>; j += L) store_vector(to + t * kCols<T> + j, Vector<T>{});
    for (int64_t j = done; j < cols; ++j) to[t * kCols<T> + j] = b.p[t * b.row + j * b.col];
  }
}

// Panels of kRows x k, (r, t) at r * row + t * col.
template <class T> inline MatView<T> packed_a(MatView<T> a, int64_t k, const T* at) {
  return a.row == 1 || (TG_ISA_LEVEL == 3 && a.col == 1) ? MatView<T>{at, 1, kRows} : MatView<T>{at, k, 1};
}
#if TG_ISA_LEVEL == 3
// (r, t) of R contiguous rows of k, ld apart, goes to to[t * kRows + r].
template <int R, class T> void turn_rows(int64_t k, const T* a, int64_t ld, T* to) {
  constexpr int L = kLanes<T>;
  int64_t t = 0;
  for (; t + L < k; t += L) {
    for (int r = 0; r < R; ++r) __builtin_prefetch(a + (R + r) * ld + t);
#pragma GCC unroll 2
    // A store of L elements may exceed the kRows of step t; later (lower) r0 overwrite.
    for (int r0 = (R - 1) / L * L; r0 >= 0; r0 -= L) {
      Bits<T> x[L];
#pragma GCC unroll 8
      for (int r = 0; r < L; ++r) x[r] = r0 + r < R ? Bits<T>(load_vector(a + (r0 + r) * ld + t)) : Bits<T>{};
      transpose_words<T>(x);
#pragma GCC unroll 8
      for (int i = 0; i < L; ++i) store_vector(to + (t + i) * kRows + r0, Vector<T>(x[i]));
    }
  }
  for (; t < k; ++t)
    for (int r = 0; r < R; ++r) to[t * kRows + r] = a[r * ld + t];
}
#endif
template <class T> inline MatView<T> pack_a(int64_t m, int64_t k, MatView<T> a, T* to) {
#if TG_ISA_LEVEL == 3
  if (a.col == 1) {
    for (int64_t i = 0; i < m; i += kRows) {
      const T* p = a.p + i * a.row;
      T* at = to + i * k;
      if (i + kRows <= m)
        turn_rows<kRows>(k, p, a.row, at);
      else
        for (int64_t t = 0; t < k; ++t)
          for (int64_t r = 0; r < m - i; ++r) at[t * kRows + r] = p[r * a.row + t];
    }
    return packed_a(a, k, to);
  }
#endif
  if (a.row == 1) {  // columns stay contiguous; 48 rows: whole lines and panels
    for (int64_t first = 0, last; first < m; first = last) {
      last = std::min<int64_t>(m, first + 48);
      for (int64_t t = 0; t < k; ++t) {
        const T* const column = a.p + t * a.col;
        int64_t i = first;
        for (; i < last; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(column + 16 * a.col + i);
        for (i = first; i + kRows <= last; i += kRows)
          std::memcpy(to + i * k + t * kRows, column + i, kRows * sizeof(T));
        std::memcpy(to + i * k + t * kRows, column + i, size_t(last - i) * sizeof(T));
      }
    }
    return packed_a(a, k, to);
  }
  for (int64_t i = 0; i < m; ++i) {
    if (a.col == 1)
      std::memcpy(to + i * k, a.p + i * a.row, size_t(k) * sizeof(T));
    else
      for (int64_t t = 0; t < k; ++t) to[i * k + t] = a.p[i * a.row + t * a.col];
  }
  return packed_a(a, k, to);
}
}  // namespace tg::cpu::TG_ISA_NS::micro
