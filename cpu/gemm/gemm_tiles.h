// GEMM of many rows and columns.
#pragma once
#include <tapegrad/cpu/gemm/gemm_small_m.h>
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/runtime/cpus.h>

namespace tg::cpu::TG_ISA_NS::tiles {
// A tile: a thread's rows x cols of C; a register tile: kRows x kCols. k is split into blocks of at most kDepth, B into
// panels of kDepth x kCols. AVX-512: kRows x kDepth of A stay in L1, B streams from L2. AVX2: a panel of B stays in L1;
// packed A streams, since six-row loads leave few issue slots next to the FMAs.
using namespace micro;
inline constexpr bool kPacksA = TG_ISA_LEVEL == 3;
inline constexpr int64_t kDepth = small_m::kDepth, kTileRows = 16 * kRows;
template <class T> inline constexpr int64_t kTileCols = 8 * kCols<T>;
template <class T> inline constexpr int64_t kTile = (1 << 21) / sizeof(T);  // multiply-adds, about 5 us
inline constexpr int64_t kMostTiles = 16;                                   // upper limit
template <class T> inline constexpr int64_t kShared = (1 << 21) / sizeof(T);
// Costs per element, in multiply-adds.
inline constexpr int64_t kReadA = 3, kReadB = 6, kPackB = 16, kTransposeB = 24, kPackA = 20;
// Contiguous columns of A up to this size stay in place; less with a large L2, whose L3 is slower.
template <class T> int64_t most_columns() {
  static const int64_t most = int64_t(1) << (kPacksA || cpu::detail::l2_bytes() <= 1 << 20 ? 23 : 18);
  return most / int64_t(sizeof(T));
}

inline thread_local Scratch t_shared, t_own;  // scratch of all threads; of a tile

struct Block {  // [first, first + depth) of k
  int64_t first, depth;
};
// One partial sum per block, so k alone sets the blocks.
inline int64_t depth_of(int64_t k) { return ceil_div(k, ceil_div(k, kDepth)); }
inline int64_t blocks(int64_t k) { return ceil_div(k, depth_of(k)); }
inline Block block(int64_t k, int64_t index) {
  const int64_t first = index * depth_of(k);
  return {first, std::min(depth_of(k), k - first)};
}

template <class T> int64_t rows_at_once(const MatView<T>& a) {
  return a.col == 1 && aliases_in_l1<T>(a.row) ? std::min<int64_t>(kRows, kL1Ways) : kRows;
}

// rows x cols of C at (i, j), at most kRows x kCols. b is packed and zero-padded if cols is between one and two
// vectors.
template <class T>
void add_tile(const Product<T>& p, const Block& l, int64_t i, int64_t rows, int64_t j, int64_t cols,
              const MatView<T>& a, const T* b, int64_t bk) {
  T* c = p.c + i * p.ldc + j;
  const bool add = p.o.accumulate || l.first > 0;
  if (cols < kLanes<T>)
    return kNarrowTiles<T>[size_t(rows - 1)](l.depth, a.p, a.row, a.col, b, bk, c, p.ldc, add, Lanes<T>(cols));
  const auto run = cols > kLanes<T> ? run_tile<2, T> : run_tile<1, T>;
  if (cols == kCols<T> || cols == kLanes<T>) return run(rows, l.depth, a, b, bk, c, p.ldc, add);
  alignas(64) T buffer[kRows * kCols<T>];
  run(rows, l.depth, a, b, bk, buffer, kCols<T>, false);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t s = 0; s < cols; ++s)
      c[r * p.ldc + s] = add ? c[r * p.ldc + s] + buffer[r * kCols<T> + s] : buffer[r * kCols<T> + s];
}

// B is always packed, A on AVX2 and where its layout is bad for caches: the smaller by all threads, the larger by each
// tile.
template <class T> struct Tiles {
  const Product<T>& p;
  // A register tile reads kRows elements per column of A; the rest of a cache line must stay cached.
  const bool in_rows = p.a.col == 1, in_columns = p.a.row == 1 && p.m * p.k <= most_columns<T>();
  const bool packs_a = kPacksA || (!in_rows && (aliases_in_l1<T>(p.a.col) || !in_columns));
  const int64_t step = rows_at_once(p.a);
  // On AVX-512 a tile packs its own B and adds all of k while its part of C is near, unless many need the same panels.
  const bool many_down = kPacksA || packs_a || 4 * p.n <= p.m || p.n <= kTileCols<T>;
  const bool shares_b = p.n <= p.m && many_down, shares_a = packs_a && !shares_b;
  const int64_t padded = shares_b ? ceil_div(p.n, kCols<T>) * kCols<T> : ceil_div(p.m, kRows) * kRows;
  const int64_t of_a = packs_a ? (shares_a ? 0 : kPackA) : kReadA;
  int64_t down = 1, across = 1, rows = 0, cols = 0;  // tiles, a tile's size

  // Cheapest split into about `want` tiles. Threads idle while the last tiles run (+ 2), so small tiles win.
  void cut() {
    const int64_t want = std::clamp<int64_t>(p.m * p.n * p.k / kTile<T>, 1, kMostTiles);
    const int64_t least_down = packs_a && !shares_a ? ceil_div(p.m, kTileRows) : 1;
    const int64_t least_across = shares_b ? 1 : ceil_div(p.n, kTileCols<T>);
    const int64_t of_b = shares_b ? kReadB : p.b.col == 1 ? kPackB : kTransposeB;
    int64_t least = INT64_MAX;
    for (int64_t i = 1; i <= want; ++i) {
      const int64_t r = ceil_div(ceil_div(p.m, std::max(i, least_down)), step) * step, d = ceil_div(p.m, r);
      for (const int64_t j : {want / d, ceil_div(want, d)}) {
        const int64_t c = ceil_div(ceil_div(p.n, std::max<int64_t>({j, least_across, 1})), kCols<T>) * kCols<T>;
        const int64_t a = ceil_div(p.n, c);
        // Cost of a tile per k, in scalar multiply-adds.
        const int64_t tile = r * c + c * of_b + r * of_a;
        const int64_t time = (d * a + 2) * tile;
        if (time < least) least = time, down = d, across = a, rows = r, cols = c;
      }
    }
  }
  // Blocks [q0, q1). The panel at column (of B) or row (of A) i of block l goes to (l.first - block(q0).first) * padded
  // + i * l.depth.
  const T* share(int64_t q0, int64_t q1, bool parallel) const {
    if (!shares_a && !shares_b) return nullptr;
    constexpr int64_t kGroup = 4 * kRows;
    const int64_t parts = shares_b ? padded / kCols<T> : ceil_div(padded, kGroup), begin = block(p.k, q0).first;
    T* const to = t_shared.get<T>(padded * (block(p.k, q1 - 1).first + block(p.k, q1 - 1).depth - begin));
    for_tiles(parallel, parts * (q1 - q0), [&](int64_t t) {
      const Block l = block(p.k, q0 + t / parts);
      const int64_t i = t % parts * (shares_b ? kCols<T> : kGroup);
      T* const at = to + (l.first - begin) * padded + i * l.depth;
      if (shares_b)
        pack_b(l.depth, std::min<int64_t>(kCols<T>, p.n - i), p.b.at(l.first, i), at);
      else
        pack_a(std::min(kGroup, p.m - i), l.depth, p.a.at(i, l.first), at);
    });
    return to;
  }
  // B for tile t, block l; nothing if B is small or packed.
  Ahead<T> ahead(int64_t t, const Block& l) const {
    if (shares_b || p.n * p.k <= kShared<T> || t >= down * across) return {};
    const int64_t j = t % across * cols;
    return Ahead<T>::of(p.b.at(l.first, j), l.depth, std::min(cols, p.n - j));
  }
  void add_block(const Block& l, const T* shared, int64_t i0, int64_t m, int64_t j0, int64_t n, Ahead<T> next_b) const {
    T* const own = t_own.get<T>(kDepth * (shares_b ? rows : cols));
    const T* b = own;
    if (shares_b)
      b = shared + j0 * l.depth;
    else
      for (int64_t j = 0; j < n; j += kCols<T>)
        pack_b(l.depth, std::min<int64_t>(kCols<T>, n - j), p.b.at(l.first, j0 + j), own + j * l.depth);
    MatView<T> a = p.a.at(i0, l.first);
    if (shares_a)
      a = packed_a(a, l.depth, shared + i0 * l.depth);
    else if (packs_a)
      a = pack_a(m, l.depth, a, own);
    const int64_t next = packs_a ? l.depth : a.row;
    const int64_t calls = ceil_div(m, step) * ceil_div(n, kCols<T>);
    const int64_t lines = ceil_div(next_b.rows * next_b.cols, calls * Ahead<T>::kLine) + 1;
    const bool columns = a.row == 1, streams = columns || a.col == 1, add = p.o.accumulate || l.first > 0;
    Next<T> ahead{.a = {}, .b = next_b, .every = std::max<int64_t>(1, (l.depth / 4 - step) / lines)};
    constexpr int64_t kStay = kPacksA ? kCols<T> : kTileCols<T>;  // columns of B in cache
    for (int64_t j1 = 0; j1 < n; j1 += kStay)
      for (int64_t i = 0; i < m; i += step) {
        const int64_t some = std::min(step, m - i), below = std::min(step, m - i - some);
        const T* const at = a.p + i * next;
        if (!columns)
          ahead.a = {at + step * next, next, l.depth, below};
        else if (!packs_a && below > 0)
          ahead.a = {at + step + below - 1, a.col, 1, l.depth};
        for (int64_t j = j1; j < std::min(n, j1 + kStay); j += kCols<T>) {
          const int64_t wide = std::min<int64_t>(kCols<T>, n - j);
          const T* const panel = b + j * l.depth;
          if constexpr (!kPacksA)
            if (streams && some == step && wide == kCols<T>) {
              (columns         ? streaming_tile<kRows, true, T>
               : step == kRows ? streaming_tile<kRows, false, T>
                               : streaming_tile<int(kL1Ways), false, T>)(l.depth, at, a.row, a.col, panel,
                                                                         p.c + (i0 + i) * p.ldc + j0 + j, p.ldc, add,
                                                                         ahead);
              continue;
            }
          ahead.b.template prefetch<2>(lines);
          add_tile(p, l, i0 + i, some, j0 + j, wide, {at, a.row, a.col}, panel, kCols<T>);
        }
      }
  }
  void run(bool parallel) {
    cut();
    const int64_t per = shares_a || shares_b ? std::max<int64_t>(1, kShared<T> / (padded * kDepth)) : blocks(p.k);
    for (int64_t q0 = 0, q1; q0 < blocks(p.k); q0 = q1) {
      q1 = std::min(q0 + per, blocks(p.k));
      const T* const shared = share(q0, q1, parallel);
      for_tiles(parallel, down * across, [&](int64_t t) {
        const int64_t i = t / across * rows, j = t % across * cols, m = std::min(rows, p.m - i),
                      n = std::min(cols, p.n - j);
        for (int64_t q = q0; q < q1; ++q) {
          const Block l = block(p.k, q);
          add_block(l, shared ? shared + (l.first - block(p.k, q0).first) * padded : nullptr, i, m, j, n,
                    q + 1 < q1 ? ahead(t, block(p.k, q + 1)) : ahead(t + 1, block(p.k, q0)));
        }
        if (q1 == blocks(p.k)) p.finish(i, m, j, n);
      });
    }
  }
};
}  // namespace tg::cpu::TG_ISA_NS::tiles
