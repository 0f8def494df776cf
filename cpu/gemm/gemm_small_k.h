// Elements of C cost little work, so C is written in memory order.
#pragma once
#include <tapegrad/cpu/gemm/gemm_tiles.h>

namespace tg::cpu::TG_ISA_NS::small_k {
using namespace tiles;
inline constexpr int64_t kStep = TG_ISA_LEVEL == 4 ? 8 : 4;  // k per pass: A stays in registers
inline constexpr int64_t kRegisters = 2 * kStep;
template <int K> inline constexpr int kRegisterRows = std::min<int>(4, 3 * kStep / K);
// kStep rows of B fill half of L1.
template <class T> inline constexpr int64_t kWidth = 16384 / kStep / sizeof(T);

// R rows of A, K of k, n columns (whole vectors). kPack copies B to `packed`, which later calls read. Sums continue
// from C unless `first`; `add`: C += sums.
struct Order {
  bool first, add;
};
template <int R, int K, bool kPack, class T>
void register_rows(int64_t n, const T* a, int64_t ar, int64_t ak, const T* b, int64_t bk, T* packed, T* c, int64_t ldc,
                   Order order) {
  constexpr int L = kLanes<T>;
  Vector<T> x[R][K];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int t = 0; t < K; ++t) {
      x[r][t] = Vector<T>{} + a[r * ar + t * ak];
      asm("" : "+v"(x[r][t]));  // prevents reloads per vector
    }
  const T* row[(K + 2) / 3];  // see micro::tile
#pragma GCC unroll 4
  for (int t = 0; t < K; t += 3) row[t / 3] = b + t * bk;
#pragma GCC unroll 1
  for (int64_t j = 0; j < n; j += L, packed += K * L) {
    Vector<T> sum[R] = {};
    T* to = c + j;
    if (!order.first)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = load_vector(to + r * ldc);
#pragma GCC unroll 8
    for (int t = 0; t < K; ++t) {
      Vector<T> y = load_vector(kPack ? row[t / 3] + t % 3 * bk : packed + t * L);
      asm("" : "+v"(y));
      if constexpr (kPack) store_vector(packed + t * L, y);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] += x[r][t] * y;
    }
    if constexpr (kPack)
#pragma GCC unroll 4
      for (int t = 0; t < K; t += 3) row[t / 3] += L;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, to += ldc) store_vector(to, order.add ? sum[r] + load_vector(to) : sum[r]);
  }
}
// k range [t, t + K), rows [i, i + m), columns [j, j + n).
template <int K, class T>
void register_block(const Product<T>& p, int64_t i, int64_t m, int64_t j, int64_t n, int64_t t, T* packed) {
  constexpr int R = kRegisterRows<K>;
  const Order order{t == 0, p.o.accumulate};
  const auto run = [&](auto rows, int64_t r) {
    rows(n, p.a.p + (i + r) * p.a.row + t * p.a.col, p.a.row, p.a.col, p.b.p + t * p.b.row + j, p.b.row, packed,
         p.c + (i + r) * p.ldc + j, p.ldc, order);
  };
  int64_t r = m < R ? 1 : R;
  run(m < R ? register_rows<1, K, true, T> : register_rows<R, K, true, T>, 0);
  for (; r + R <= m; r += R) run(register_rows<R, K, false, T>, r);
  for (; r < m; ++r) run(register_rows<1, K, false, T>, r);
}
template <class T>
inline constexpr auto kRegisterBlocks = functions_of<kStep>([]<int K>() { return &register_block<K, T>; });

template <class T> bool fits_registers(const Product<T>& p) {
  return p.b.col == 1 && p.k <= (p.o.accumulate ? kStep : kRegisters) && p.m > small_m::kMost && p.n >= kLanes<T>;
}
template <class T> void run_registers(const Product<T>& p, bool parallel) {
  const int64_t rows = parallel ? 24 : p.m, whole = p.n / kLanes<T> * kLanes<T>;
  for_tiles(parallel, ceil_div(p.m, rows), [&](int64_t tile) {
    const int64_t i = tile * rows, m = std::min(rows, p.m - i);
    T* const packed = t_own.get<T>(kStep * kWidth<T>);
    for (int64_t j = 0, n; j < whole; j += n) {
      n = std::min(kWidth<T>, whole - j);
      for (int64_t t = 0, k; t < p.k; t += k) {
        k = std::min(kStep, p.k - t);
        kRegisterBlocks<T>[size_t(k - 1)](p, i, m, j, n, t, packed);
      }
    }
    for (int64_t r = 0; whole < p.n && r < m; r += kRows)
      add_tile(p, {0, p.k}, i + r, std::min<int64_t>(kRows, m - r), whole, p.n - whole, p.a.at(i + r, 0),
               p.b.at(0, whole).p, p.b.row);
    p.finish(i, m, 0, p.n);
  });
}

inline constexpr int64_t kMost = 64;                                             // maximum k
template <class T> inline constexpr int64_t kInCache = (1 << 18) / sizeof(T);    // elements of B
template <class T> inline constexpr int64_t kPackAlone = (1 << 16) / sizeof(T);  // fewer elements: one thread packs
inline constexpr int64_t kStripRows = TG_ISA_LEVEL == 4 ? 8 : 6;
template <class T> bool fits_strips(const Product<T>& p) {
  return p.b.col == 1 && p.k <= kMost && p.k * p.n <= kInCache<T> && p.m >= 4 * kStripRows;
}
template <class T> void run_strips(const Product<T>& p, bool parallel) {
  constexpr bool packs = kPacksA;
  const int64_t panels = ceil_div(p.n, kCols<T>), panel = p.k * kCols<T>;
  T* const packed = packs ? t_shared.get<T>(panels * panel) : nullptr;
  for_tiles(parallel && p.k * p.n >= kPackAlone<T>, packs ? panels : 0, [&](int64_t j) {
    pack_b(p.k, std::min<int64_t>(kCols<T>, p.n - j * kCols<T>), p.b.at(0, j * kCols<T>), packed + j * panel);
  });
  for_tiles(parallel, ceil_div(p.m, kStripRows), [&](int64_t t) {
    const int64_t i = t * kStripRows, rows = std::min<int64_t>(kStripRows, p.m - i);
    T* const own = t_own.get<T>(p.k * kCols<T>);
    MatView<T> a = p.a.at(i, 0);
    if (packs) a = pack_a(rows, p.k, a, own);
    for (int64_t j = 0, cols; j < p.n; j += cols) {
      cols = std::min<int64_t>(kCols<T>, p.n - j);
      MatView<T> b = p.b.at(0, j);
      if (packs)
        b = {packed + j * p.k, kCols<T>, 1};
      else if (cols > kLanes<T> && cols < kCols<T>)
        pack_b(p.k, cols, b, own), b = {own, kCols<T>, 1};
      add_tile(p, {0, p.k}, i, rows, j, cols, a, b.p, b.row);
    }
    p.finish(i, rows, 0, p.n);
  });
}
}  // namespace tg::cpu::TG_ISA_NS::small_k
