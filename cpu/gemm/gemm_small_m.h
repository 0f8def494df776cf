// At most kMost rows, bound by reading B: once, in place, in memory order, the next segment prefetched to L2. Bits
// equal those of many rows.
#pragma once
#include <tapegrad/cpu/gemm/gemm_micro.h>
#include <tapegrad/cpu/runtime/thread_pool.h>
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/scratch.h>

namespace tg::cpu::TG_ISA_NS::small_m {
using micro::Bits, micro::kLanes;
inline constexpr int64_t kMost = 16;
inline constexpr int64_t kGroup = TG_ISA_LEVEL == 4 ? 16 : 8;  // rows with accumulators in registers
inline constexpr int64_t kDepth = 384;                         // max k of an FMA chain
// Bytes of a column of B; kLanes of them, with prefetches, take a fraction of L2.
inline constexpr int64_t kSegment = 6144;
inline constexpr int64_t kNear = 1 << 18;  // bytes of B in a cache
inline constexpr int64_t kColumns = 64;    // contiguous in k, per tile
inline constexpr int64_t kPaired = 4;      // most rows that take two vectors of columns in turn
inline thread_local Scratch t_rows, t_totals, t_sums, t_out;

template <class Sum> inline Bits<Sum> load_bits(const void* p) {
  Bits<Sum> x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
// Loads the first n elements; others are 0.
template <class T> inline Bits<T> load_some(const T* p, int64_t n) { return Bits<T>(micro::Lanes<T>(n).load(p)); }
inline Bits<float> load_some(const bf16* p, int64_t n) {
  alignas(64) bf16 some[2 * kLanes<float>] = {};
  std::memcpy(static_cast<void*>(some), p, size_t(n) * sizeof(bf16));
  return load_bits<float>(some);
}

// Multiply policies. A unit: kUnit elements adjacent in k. A Lane: a unit of A, to be broadcast. 32 bits (f64: 64) of B
// hold one unit or, if Widened, two: `unit` says which.
template <class Number> struct ScalarFma {
  using T = Number;
  using Lane = Number;
  using Sum = Number;
  static constexpr int64_t kUnit = 1;
  static constexpr bool kOneChain = false;  // one chain over k
  static Lane lane(MatView<T> a, int64_t i, int64_t t, int64_t) { return a.p[i * a.row + t * a.col]; }
  template <int R> static void add(Vector<Sum> (&sum)[R], const Lane* a, Bits<Sum> x, int64_t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] += a[r] * Vector<Sum>(x);
  }
  // kUnit rows of B by kLanes columns, ld apart; `left` of them exist.
  static Bits<Sum> row(const T* b, int64_t, int64_t) { return load_bits<Sum>(b); }
};
struct Widened : ScalarFma<float> {
  using T = bf16;
  static Lane lane(MatView<bf16> a, int64_t i, int64_t t, int64_t) { return a.p[i * a.row + t * a.col]; }
  template <int R> static void add(Vector<float> (&sum)[R], const Lane* a, Bits<float> x, int64_t unit) {
    ScalarFma<float>::add(sum, a, unit == 0 ? x << 16 : x & 0xffff0000u, 0);
  }
  static Bits<float> row(const T* b, int64_t, int64_t) {
#if TG_ISA_LEVEL == 4
    return Bits<float>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b))));
#else
    return Bits<float>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b))));
#endif
  }
};
#if TG_ISA_LEVEL == 4
struct Pairs : Widened {
  using Lane = uint32_t;
  static constexpr int64_t kUnit = 2;
  static constexpr bool kOneChain = true;
  static Lane lane(MatView<bf16> a, int64_t i, int64_t t, int64_t k) {
    const bf16* const p = a.p + i * a.row + t * a.col;
    return p[0].bits | (t + 1 < k ? Lane(p[a.col].bits) << 16 : 0);
  }
  template <int R> static void add(Vector<float> (&sum)[R], const Lane* a, Bits<float> x, int64_t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) asm("vdpbf16ps %2, %1, %0" : "+v"(sum[r]) : "v"(Bits<float>{} + a[r]), "v"(x));
  }
  static Bits<float> row(const T* b, int64_t ld, int64_t left) {
    const Bits<float> first = Widened::row(b, ld, left);
    return left > 1 ? first | Widened::row(b + ld, ld, left) << 16 : first;
  }
};
#endif

// [begin, end) of k; begin is aligned to cache lines if B's columns are.
struct Range {
  int64_t begin, end, k, depth;  // depth: chain length
};
// R rows of A by V times kLanes columns of B, contiguous in k, in turn: one row's chain of bf16 takes longer than its
// loads. Sums (V, R, kLanes) continue from the previous segment; a chain's end adds them to `totals`. Each block of
// loads prefetches `each` lines.
template <class W, int V, int R>
void lines_tile(Range range, const typename W::Lane* a, const typename W::T* b, int64_t ld, typename W::Sum* sums,
                typename W::Sum* totals, Ahead<typename W::T>& ahead, int64_t each) {
  using S = typename W::Sum;
  constexpr int64_t L = kLanes<S>, kEach = int64_t(sizeof(S) / sizeof(*b)), kBlock = kEach * L,
                    kUnits = kEach / W::kUnit;
  Ahead<typename W::T> next = ahead;
  Vector<S> sum[V][R] = {};
  if (range.begin > 0)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[v][r] = load_vector(sums + (v * R + r) * L);
  int64_t border = std::min(range.k, (range.begin / range.depth + 1) * range.depth);
  a += range.begin / W::kUnit * R, b += range.begin;
#pragma GCC unroll 1
  for (int64_t t = range.begin; t < range.end; t += kBlock, b += kBlock, a += L * kUnits * R) {
    const int64_t first_border = border;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Bits<S> x[L];
      const typename W::T* p = b + v * L * ld;
      next.template prefetch<2>(each);
      if (t + kBlock <= range.k)
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i, p += ld) {
          // Prevents an offset per row, which would take more registers than there are.
          asm("" : "+r"(p));
          x[i] = load_bits<S>(p);
        }
      else
        for (int i = 0; i < L; ++i, p += ld) x[i] = load_some(p, range.k - t);
      transpose_words<S>(x);
      const typename W::Lane* to = a;
      if (t + kBlock < first_border) {
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i)
#pragma GCC unroll 2
          for (int64_t unit = 0; unit < kUnits; ++unit, to += R) W::template add<R>(sum[v], to, x[i], unit);
        continue;
      }
      Bits<S> y[L];  // x may stay in registers
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) y[i] = x[i];
      border = first_border;
      for (int64_t u = 0, at = t; u < L * kUnits && at < range.k; ++u, to += R) {
        W::template add<R>(sum[v], to, y[u / kUnits], u % kUnits);
        if ((at += W::kUnit) < border) continue;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          S* const total = totals + (v * R + r) * L;
          store_vector(total, border <= range.depth ? sum[v][r] : sum[v][r] + load_vector(total));
          sum[v][r] = Vector<S>{};
        }
        border = std::min(range.k, border + range.depth);
      }
    }
  }
  ahead = next;
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store_vector(sums + (v * R + r) * L, sum[v][r]);
}
// R rows of A by V vectors of columns of k rows of B. Sums (V, R, kLanes) continue unless part.begins. part.ends: total
// = (part.first) or += sums.
struct Part {
  bool begins, ends, first, fetch;
};
template <class W, int V, int R>
void rows_tile(int64_t k, const typename W::Lane* a, const typename W::T* b, int64_t ld, typename W::Sum* sums,
               typename W::Sum* total, Part part, const typename W::T* next) {
  using S = typename W::Sum;
  constexpr int64_t L = kLanes<S>;
  Vector<S> sum[R] = {}, right[V == 2 ? R : 1] = {};  // one array would stay in memory
  if (!part.begins)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum[r] = load_vector(sums + r * L);
      if constexpr (V == 2) right[r] = load_vector(sums + (R + r) * L);
    }
#pragma GCC unroll 1
  for (; k > 0; k -= W::kUnit, b += W::kUnit * ld, a += R) {
    const Bits<S> x = W::row(b, ld, k);
    if (part.fetch)
#pragma GCC unroll 2
      for (int i = 0; i < W::kUnit; ++i, next += ld) __builtin_prefetch(next, 0, 2);
    W::template add<R>(sum, a, x, 0);
    if constexpr (V == 2) W::template add<R>(right, a, W::row(b + L, ld, k), 0);
  }
  const auto store = [&](Vector<S> x, int64_t at) __attribute__((always_inline)) {
    if (part.ends)
      store_vector(total + at, part.first ? x : x + load_vector(total + at));
    else
      store_vector(sums + at, x);
  };
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    store(sum[r], r * L);
    if constexpr (V == 2) store(right[r], (R + r) * L);
  }
}
template <class W, int V>
inline constexpr auto kLinesTiles = functions_of < V == 1 ? kGroup
                                                          : kPaired > ([]<int R>() { return &lines_tile<W, V, R>; });
template <class W, int V = 1>
inline constexpr auto kRowsTiles = functions_of<kGroup / V>([]<int R>() { return &rows_tile<W, V, R>; });

// A (m x k) as (groups, units, rows of a group), and the length of a chain.
template <class W> struct PackedRows {
  using Lane = typename W::Lane;
  int64_t m, k, group, units, depth;
  const Lane* p;

  PackedRows(int64_t rows, int64_t terms, MatView<typename W::T> a)
      : m(rows),
        k(terms),
        group(ceil_div(m, ceil_div(m, kGroup))),
        units(ceil_div(k, W::kUnit)),
        depth(W::kOneChain ? k : ceil_div(k, ceil_div(k, kDepth))) {
    Lane* const to = t_rows.get<Lane>(m * units);
    for_groups([&](int64_t i, int64_t some) {
      for (int64_t r = 0; r < some; ++r)
        for (int64_t t = 0; t < units; ++t) to[i * units + t * some + r] = W::lane(a, i + r, t * W::kUnit, k);
    });
    p = to;
  }
  const Lane* at(int64_t i, int64_t rows, int64_t t) const { return p + i * units + t / W::kUnit * rows; }
  // Calls f(i, rows) for each group.
  template <class F> void for_groups(F&& f) const {
    for (int64_t i = 0; i < m; i += group) f(i, std::min(group, m - i));
  }
};

template <class W> class Product {
 public:
  using T = typename W::T;
  using Sum = typename W::Sum;
  using Store = FunctionRef<void(int64_t i, int64_t j, int64_t n, Sum* sums)>;
  Product(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, Store store)
      : m_(m), n_(n), k_(k), a_(m, k, a), b_(b), store_(store) {}
  void run(bool parallel) const {
    const bool lines = b_.col != 1;  // columns contiguous in k
    // Long row segments, unless sums would not fit a cache or threads would idle.
    const int64_t wide = std::clamp<int64_t>(n_ / (2 * num_threads()), 256, m_ > 4 ? 1024 : 2048);
    const int64_t width = lines ? kColumns : wide / L * L, tiles = std::max<int64_t>(1, n_ / width);
    for_tiles(parallel, tiles, [&](int64_t t) {
      const int64_t j = t * width, cols = t + 1 < tiles ? width : n_ - j;
      Sum* const totals = t_totals.get<Sum>(m_ * ceil_div(cols, L) * L);
      (this->*(lines ? &Product::by_lines : &Product::by_rows))(j, cols, totals);
      put(j, cols, totals);
    });
  }

 private:
  static constexpr int64_t L = kLanes<Sum>;

  static int64_t column(int64_t strip, int64_t cols) { return std::min(strip * L, cols - L); }

  void by_lines(int64_t j, int64_t cols, Sum* totals) const {
    constexpr int kAtOnce =
        sizeof(T) < sizeof(Sum) ? 2 : 1;  // vectors of columns; in f32 loads take as long as the chain
    const bool pairs = kAtOnce == 2 && m_ <= kPaired;
    const int64_t strips = ceil_div(cols, L), segment = kSegment / int64_t(sizeof(T)) / (pairs ? 2 : 1);
    const int64_t groups = ceil_div(m_, a_.group), each = std::max<int64_t>(1, L * kVectorBytes / 64 / groups);
    Sum* const sums = t_sums.get<Sum>(2 * m_ * L);
    for (int64_t s = 0, some = 1; s < strips; s += some) {
      some = pairs && (s + 2) * L <= cols ? 2 : 1;
      for (int64_t q = 0; q < k_; q += segment) {
        const T* const b = b_.p + (j + column(s, cols)) * b_.col;
        const int64_t end = std::min(k_, q + segment);
        Ahead<T> ahead{end < k_ ? b + end : b + some * L * b_.col, b_.col, std::min(segment, end < k_ ? k_ - end : k_),
                       some * L};
        a_.for_groups([&](int64_t i, int64_t rows) {
          const auto tile = some == 2 ? kLinesTiles<W, kAtOnce>[size_t(rows - 1)] : kLinesTiles<W, 1>[size_t(rows - 1)];
          tile({q, end, k_, a_.depth}, a_.at(i, rows, 0), b, b_.col, sums + i * L, totals + (s * m_ + i) * L, ahead,
               each);
        });
      }
    }
  }
  void by_rows(int64_t j, int64_t cols, Sum* totals) const {
    const int64_t strips = ceil_div(cols, L);
    const bool near = n_ * k_ * int64_t(sizeof(T)) <= kNear;
    const int64_t some = near ? a_.depth : m_ > 4 && m_ <= kGroup ? 16 : 8;  // rows of B per pass
    constexpr int64_t kLine = 64 / int64_t(sizeof(T));
    Sum* const sums = t_sums.get<Sum>(m_ * strips * L);
    for (int64_t q = 0; q < k_; q += a_.depth)
      for (int64_t t = q, end = std::min(k_, q + a_.depth); t < end; t += some) {
        const int64_t k = std::min(some, end - t);
        for (int64_t s = 0; s < strips; ++s)
          a_.for_groups([&](int64_t i, int64_t rows) {
            const int64_t at = (s * m_ + i) * L;
            const T* const b = b_.p + t * b_.row + j + column(s, cols);
            const Part part{t == q, t + some >= end, q == 0, !near && i == 0 && s * L % kLine == 0};
            kRowsTiles<W>[size_t(rows - 1)](k, a_.at(i, rows, t), b, b_.row, sums + at, totals + at, part,
                                            b + k * b_.row);
          });
      }
  }
  void put(int64_t j, int64_t cols, const Sum* totals) const {
    Sum* const out = t_out.get<Sum>(cols);
    for (int64_t i = 0; i < m_; ++i) {
      for (int64_t s = 0; s < ceil_div(cols, L); ++s)
        store_vector(out + column(s, cols), load_vector(totals + (s * m_ + i) * L));
      store_(i, j, cols, out);
    }
  }

  int64_t m_, n_, k_;
  PackedRows<W> a_;
  MatView<T> b_;
  Store store_;
};
}  // namespace tg::cpu::TG_ISA_NS::small_m
