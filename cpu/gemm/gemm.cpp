// Products on AVX2 and AVX-512 machines are computed on the register tiles of cpu/gemm/gemm_micro.h, on the baseline by
// Eigen. The only file that includes Eigen.
#include <tapegrad/cpu/gemm.h>
#include <tapegrad/cpu/gemm/bf16_path.h>
#include <tapegrad/cpu/scratch.h>
#include <tapegrad/cpu/thread_pool.h>

#include <algorithm>
#include <vector>
#if TG_ISA_LEVEL >= 3
#include <tapegrad/cpu/gemm/gemm_few_rows.h>
#else
#include <Eigen/Core>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T> struct Product {
  int64_t m, n, k;
  MatView<T> a, b;
  T* c;
  int64_t ldc;
  GemmOptions<T> o;

  void finish(int64_t i, int64_t rows, int64_t j, int64_t cols) const {
    if (!o.finish) return;
    for (int64_t r = i; r < i + rows; ++r) (*o.finish)(c + r * ldc + j, j, cols);
  }
};

#if TG_ISA_LEVEL < 3
// The blocked product itself: expressions would add paths for vectors and small matrices, which cost more to compile
// than all the rest and whose sums depend on alignment.
template <class T, int A, int B>
void add_product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
  using namespace Eigen::internal;
  constexpr int dyn = Eigen::Dynamic;
  gemm_blocking_space<Eigen::RowMajor, T, T, dyn, dyn, dyn> blocking(m, n, k, 1, true);
  general_matrix_matrix_product<int64_t, T, A, false, T, B, false, Eigen::RowMajor, 1>::run(
      m, n, k, a, lda, b, ldb, c, 1, ldc, T(1), blocking, nullptr);
}
// Strides that are 1 in neither direction (or odd ones of single rows and columns) are copied to row-major first.
template <class T> MatView<T> packed(MatView<T> v, int64_t rows, int64_t cols, std::vector<T>& scratch) {
  if (v.col == 1 && (v.row >= cols || rows <= 1)) return {v.p, std::max(v.row, cols), 1};
  if (v.row == 1 && (v.col >= rows || cols <= 1)) return {v.p, 1, std::max(v.col, rows)};
  scratch.resize(size_t(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) scratch[size_t(i * cols + j)] = v.p[i * v.row + j * v.col];
  return {scratch.data(), cols, 1};
}
template <class T> void tile(const Product<T>& p, int64_t i, int64_t rows, int64_t j, int64_t cols) {
  using Eigen::ColMajor, Eigen::RowMajor;
  T* const c = p.c + i * p.ldc + j;
  if (!p.o.accumulate)
    for (int64_t r = 0; r < rows; ++r) std::fill_n(c + r * p.ldc, cols, T(0));
  const bool a = p.a.col == 1, b = p.b.col == 1;
  const auto product = a && b ? add_product<T, RowMajor, RowMajor>
                       : a    ? add_product<T, RowMajor, ColMajor>
                       : b    ? add_product<T, ColMajor, RowMajor>
                              : add_product<T, ColMajor, ColMajor>;
  if (p.k > 0)
    product(rows, cols, p.k, p.a.at(i, 0).p, a ? p.a.row : p.a.col, p.b.at(0, j).p, b ? p.b.row : p.b.col, c, p.ldc);
  p.finish(i, rows, j, cols);
}
// The cut of an m x n product into rows x cols tiles. Each tile packs its own operands, so a cut of m packs B again and
// a cut of n packs A again: of the cuts with enough tiles, the one that packs least.
struct Cut {
  int64_t rows, cols, m, n;  // tiles down and across, and their sizes
  Cut(int64_t size_m, int64_t size_n, int64_t k) {
    constexpr int64_t kTile = 1 << 22;  // multiply-adds of a tile: some 60 us
    const int64_t want = std::clamp<int64_t>(ceil_div(size_m * size_n * k, kTile), 1, 16);
    int64_t least = INT64_MAX;
    for (int64_t r = 1; r <= want; ++r) {
      const int64_t c = ceil_div(want, r), packed = r * size_n + c * size_m;
      if (packed < least) least = packed, rows = r, cols = c;
    }
    m = ceil_div(ceil_div(size_m, rows), 4) * 4, n = ceil_div(ceil_div(size_n, cols), 16) * 16;
    rows = ceil_div(size_m, m), cols = ceil_div(size_n, n);
  }
};
template <class T> void multiply(Product<T> p, bool parallel) {
  std::vector<T> scratch_a, scratch_b;
  p.a = packed(p.a, p.m, p.k, scratch_a);
  p.b = packed(p.b, p.k, p.n, scratch_b);
  if (!parallel || p.m * p.n * p.k < (1 << 18)) return tile(p, 0, p.m, 0, p.n);
  const Cut cut(p.m, p.n, p.k);
  parallel_for(cut.rows * cut.cols, [&](int64_t t) {
    const int64_t i = t / cut.cols * cut.m, j = t % cut.cols * cut.n;
    tile(p, i, std::min(cut.m, p.m - i), j, std::min(cut.n, p.n - j));
  });
}
#else
// k is cut into blocks of at most kDepth: kRows x kDepth of A stay in L1 while kTileCols of B, in panels of kDepth x
// kCols, pass by, from L2.
using namespace micro;
constexpr int64_t kDepth = few_rows::kDepth, kTileRows = 16 * kRows;
template <class T> constexpr int64_t kTileCols = 8 * kCols<T>;
template <class T> constexpr int64_t kTile = (1 << 21) / sizeof(T);  // multiply-adds of a tile, some 5 us
template <class T> constexpr int64_t kSerial = 2 * kTile<T>;         // less runs on the calling thread
constexpr int64_t kMostTiles = 16;                                   // tiles that are enough
template <class T>
constexpr int64_t kShared = (1 << 21) / sizeof(T);       // elements of a packed operand that all tiles read
constexpr int64_t kReadB = 6, kPackB = 16, kPackA = 20;  // what an element costs, in multiply-adds
constexpr int64_t kSomeRows = 96;  // up to here a panel of B is packed by the one tile that needs it
constexpr int64_t kShallow = 64;   // k up to which C is written row by row, if B has at most kInCache elements
template <class T> constexpr int64_t kInCache = (1 << 18) / sizeof(T);
template <class T>
constexpr int64_t kColumns = (TG_ISA_LEVEL == 4 ? 1 << 23 : 1 << 19) / sizeof(T);  // of A in columns, read in place
constexpr int kStripRows = TG_ISA_LEVEL == 4 ? 8 : 6;

thread_local Scratch t_shared, t_own;  // of the caller, read by all threads; of a tile

struct Block {  // [first, first + depth) of k
  int64_t first, depth;
};
// Element (i, j) gets one partial sum per block, so the blocks depend on k alone.
int64_t depth_of(int64_t k) { return ceil_div(k, ceil_div(k, kDepth)); }
int64_t blocks(int64_t k) { return ceil_div(k, depth_of(k)); }
Block block(int64_t k, int64_t index) {
  const int64_t first = index * depth_of(k);
  return {first, std::min(depth_of(k), k - first)};
}

template <class F> void for_tiles(bool parallel, int64_t n, F&& f) {
  if (parallel) return parallel_for(n, f);
  for (int64_t i = 0; i < n; ++i) f(i);
}

// rows x cols of C at (i, j), at most kRows x kCols; b is a panel, packed if cols is more than a vector has and no
// whole number of them.
template <class T>
void add_tile(const Product<T>& p, const Block& l, int64_t i, int64_t rows, int64_t j, int64_t cols,
              const MatView<T>& a, const T* b, int64_t bk) {
  T* c = p.c + i * p.ldc + j;
  const bool add = p.o.accumulate || l.first > 0;
  if (cols < kLanes<T>)
    return kNarrowTiles<T>[size_t(rows - 1)](l.depth, a.p, a.row, a.col, b, bk, c, p.ldc, add, Lanes<T>(cols));
  const auto run = (cols > kLanes<T> ? kTiles<2, Numbers<T>> : kTiles<1, Numbers<T>>)[size_t(rows - 1)];
  if (cols == kCols<T> || cols == kLanes<T>) return run(l.depth, a.p, a.row, a.col, b, bk, c, p.ldc, add);
  alignas(64) T buffer[kRows * kCols<T>];
  run(l.depth, a.p, a.row, a.col, b, bk, buffer, kCols<T>, false);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t s = 0; s < cols; ++s)
      c[r * p.ldc + s] = add ? c[r * p.ldc + s] + buffer[r * kCols<T> + s] : buffer[r * kCols<T> + s];
}

// Up to kSomeRows rows: A where it lies, each panel of B from its own tile's hands into L1.
template <class T> void some_rows(const Product<T>& p, bool parallel) {
  const int64_t strips = ceil_div(p.n, kCols<T>), per_tile = parallel ? std::clamp<int64_t>(strips / 32, 1, 8) : strips;
  for_tiles(parallel, ceil_div(strips, per_tile), [&](int64_t t) {
    T* to = t_own.get<T>(kDepth * kCols<T>);
    const int64_t end = std::min(p.n, (t + 1) * per_tile * kCols<T>);
    for (int64_t j = t * per_tile * kCols<T>; j < end; j += kCols<T>) {
      const int64_t cols = std::min<int64_t>(kCols<T>, end - j);
      for (int64_t q = 0; q < blocks(p.k); ++q) {
        const Block l = block(p.k, q);
        MatView<T> b = p.b.at(l.first, j);
        if (b.col != 1 || (cols > kLanes<T> && cols != kCols<T>)) pack_b(l.depth, cols, b, to), b = {to, kCols<T>, 1};
        for (int64_t i = 0; i < p.m; i += kRows)
          add_tile(p, l, i, std::min<int64_t>(kRows, p.m - i), j, cols, p.a.at(i, l.first), b.p, b.row);
      }
      p.finish(0, p.m, j, cols);
    }
  });
}
// So few that B counts alone.
template <class T> bool few(const Product<T>& p) {
  if (p.m > few_rows::kMost || p.k < 8 || p.n <= kLanes<T> || (p.b.row != 1 && p.b.col != 1)) return false;
  return !p.o.accumulate || p.k <= kDepth;  // one sum for an element
}
template <class T> void multiply_few_rows(const Product<T>& p, bool parallel) {
  const auto store = [&](int64_t i, int64_t j, int64_t n, const T* sums) {
    T* const c = p.c + i * p.ldc + j;
    for (int64_t s = 0; s < n; ++s) c[s] = p.o.accumulate ? c[s] + sums[s] : sums[s];
    p.finish(i, 1, j, n);
  };
  few_rows::Product<few_rows::Numbers<T>>(p.m, p.n, p.k, p.a, p.b, store).run(parallel);
}

// Little work for an element of C: what counts is that C is written in the order of its memory.
template <class T> void shallow(const Product<T>& p, bool parallel) {
  for_tiles(parallel, ceil_div(p.m, kStripRows), [&](int64_t t) {
    const int64_t i = t * kStripRows, rows = std::min<int64_t>(kStripRows, p.m - i);
    for (int64_t j = 0, cols; j < p.n; j += cols) {
      cols = std::min<int64_t>(kCols<T>, p.n - j);
      MatView<T> b = p.b.at(0, j);
      if (cols > kLanes<T> && cols < kCols<T>) {
        T* const to = t_own.get<T>(kDepth * kCols<T>);
        pack_b(p.k, cols, b, to), b = {to, kCols<T>, 1};
      }
      add_tile(p, {0, p.k}, i, rows, j, cols, p.a.at(i, 0), b.p, b.row);
    }
    p.finish(i, rows, 0, p.n);
  });
}

// Rows of memory that are needed soon, prefetched a few lines at a time.
template <class T> struct Ahead {
  static constexpr int64_t kLine = 64 / sizeof(T);
  const T* row;
  int64_t stride, cols, rows, at = 0;
  void prefetch(int64_t lines) {
    for (; lines > 0 && rows > 0; --lines) {
      __builtin_prefetch(row + at, 0, 2);
      if ((at += kLine) >= cols) at = 0, row += stride, --rows;
    }
  }
};

// A product in tiles of C. Panels of B are always packed, and A where it lies badly for the caches: of these the
// smaller operand once before all tiles, by all threads; the larger one by each tile for itself.
template <class T> struct Tiles {
  const Product<T>& p;
  static constexpr int64_t kPage = 4096 / sizeof(T);
  // Neighbours whole pages apart share places of a cache. Of a line down a column a tile takes kRows, so that caches
  // must hold the line for the next tiles.
  const bool in_rows = p.a.col == 1, in_columns = p.a.row == 1 && p.m * p.k <= kColumns<T>;
  const bool packs_a = (in_rows ? p.a.row : p.a.col) % kPage == 0 || !(in_rows || in_columns);
  const bool shares_b = p.n <= p.m, shares_a = packs_a && !shares_b;
  const int64_t padded = shares_b ? ceil_div(p.n, kCols<T>) * kCols<T> : ceil_div(p.m, kRows) * kRows;
  int64_t down = 1, across = 1, rows = 0, cols = 0;  // tiles, and the size of one

  // Of the cuts into about `want` tiles, the one with the least work, and small tiles, as the last ones run alone.
  void cut() {
    const int64_t want = std::clamp<int64_t>(p.m * p.n * p.k / kTile<T>, 1, kMostTiles);
    const int64_t least_down = packs_a && !shares_a ? ceil_div(p.m, kTileRows) : 1;
    const int64_t least_across = shares_b ? 1 : ceil_div(p.n, kTileCols<T>);
    int64_t least = INT64_MAX;
    for (int64_t i = 1; i <= want; ++i) {
      const int64_t r = ceil_div(ceil_div(p.m, std::max(i, least_down)), kRows) * kRows, d = ceil_div(p.m, r);
      const int64_t j = std::max(ceil_div(want, d), least_across);
      const int64_t c = ceil_div(ceil_div(p.n, j), kCols<T>) * kCols<T>, a = ceil_div(p.n, c);
      // Multiply-adds of single elements that a tile takes as long as, for one of k.
      const int64_t tile = r * c + c * (shares_b ? kReadB : kPackB) + (packs_a && !shares_a ? r * kPackA : 0);
      const int64_t time = (d * a + 2) * tile;
      if (time < least) least = time, down = d, across = a, rows = r, cols = c;
    }
  }
  // Of blocks [q0, q1): the shared operand, where column j or row i of block l is at (first - first of q0) * padded +
  // i * depth.
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
  // What tile t packs of B in block l, if it comes from memory.
  Ahead<T> ahead(int64_t t, const Block& l) const {
    const bool memory = !shares_b && p.b.col == 1 && p.n * p.k > kShared<T> && t < down * across;
    const int64_t j = t % across * cols;
    return {p.b.at(l.first, j).p, p.b.row, std::min(cols, p.n - j), memory ? l.depth : 0};
  }
  // To rows [i0, i0 + m) and columns [j0, j0 + n) of C, what block l adds; `shared`: of this block.
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
    const int64_t lines = ceil_div(next_b.rows * n, ceil_div(m, kRows) * ceil_div(n, kCols<T>) * Ahead<T>::kLine) + 1;
    for (int64_t j1 = 0; j1 < n; j1 += kTileCols<T>)
      for (int64_t i = 0; i < m; i += kRows)
        for (int64_t j = j1; j < std::min(n, j1 + kTileCols<T>); j += kCols<T>) {
          next_b.prefetch(lines);
          add_tile(p, l, i0 + i, std::min<int64_t>(kRows, m - i), j0 + j, std::min<int64_t>(kCols<T>, n - j),
                   {a.p + i * next, a.row, a.col}, b + j * l.depth, kCols<T>);
        }
  }
  void run(bool parallel) {
    cut();
    // As many blocks of k at once as a cache holds of the shared operand.
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

// Columns [j, j + N) for rows [i, end), whose lanes run along k; b: columns of k neighbours.
template <int N, class T>
int64_t dot_columns(const Product<T>& p, const T* b, int64_t bc, int64_t i, int64_t end, int64_t j) {
  constexpr int R = kDotRows<N>;
  for (; j + N <= p.n; j += N)
    for (int64_t r = i; r < end;) {
      const bool whole = r + R <= end;
      (whole ? dot_tile<R, N, T> : dot_tile<1, N, T>)(p.k, p.a.p + r * p.a.row, p.a.row, b + j * bc, bc,
                                                      p.c + r * p.ldc + j, p.ldc, p.o.accumulate);
      r += whole ? R : 1;
    }
  return j;
}
// Hardly more columns than a vector has, and rows of A that are neighbours in k.
template <class T> void few_columns(const Product<T>& p, bool parallel) {
  MatView<T> b = p.b;
  if (b.row != 1 && p.k > 1) {
    T* const to = t_shared.get<T>(p.k * p.n);
    pack_transposed(p.k, p.n, b, to);
    b = {to, 1, p.k};
  }
  const int64_t rows = parallel ? 24 : p.m;
  for_tiles(parallel, ceil_div(p.m, rows), [&](int64_t t) {
    const int64_t i = t * rows, end = std::min(p.m, i + rows);
    int64_t j = dot_columns<8>(p, b.p, b.col, i, end, 0);
    j = dot_columns<4>(p, b.p, b.col, i, end, j);
    j = dot_columns<2>(p, b.p, b.col, i, end, j);
    dot_columns<1>(p, b.p, b.col, i, end, j);
    p.finish(i, end - i, 0, p.n);
  });
}
// No more columns than a vector has, and columns of A that are neighbours: the transpose of C, strip by strip.
template <class T> void few_columns_down(const Product<T>& p, bool parallel) {
  for_tiles(parallel, ceil_div(p.m, kCols<T>), [&](int64_t t) {
    const int64_t i = t * kCols<T>, rows = std::min<int64_t>(kCols<T>, p.m - i);
    T* const packed = rows < kCols<T> ? t_own.get<T>(kDepth * kCols<T>) : nullptr;
    alignas(64) T buffer[kLanes<T> * kCols<T>];  // (n, rows)
    for (int64_t q = 0; q < blocks(p.k); ++q) {
      const Block l = block(p.k, q);
      const MatView<T> at = p.a.at(i, l.first).transposed(), bt = p.b.at(l.first, 0).transposed();
      if (packed) pack_b(l.depth, rows, at, packed);
      for (int64_t j = 0; j < p.n; j += kRows)
        kTiles<2, Numbers<T>>[size_t(std::min<int64_t>(kRows, p.n - j) - 1)](
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

template <class T> void multiply(const Product<T>& p, bool parallel) {
  if (p.k == 0) {
    for (int64_t i = 0; !p.o.accumulate && i < p.m; ++i) std::fill_n(p.c + i * p.ldc, p.n, T(0));
    return p.finish(0, p.m, 0, p.n);
  }
  parallel = parallel && std::max<int64_t>(p.m, 8) * p.n * p.k >= kSerial<T>;  // a few rows cost what reading B costs
  if (p.a.col == 1 && (p.n < kLanes<T> || (p.n == kLanes<T> && p.b.row == 1))) return few_columns(p, parallel);
  if (p.a.row == 1 && p.n <= kLanes<T>) return few_columns_down(p, parallel);
  if (p.b.col == 1 && p.k <= kShallow && p.k * p.n <= kInCache<T> && p.m >= 4 * kStripRows) return shallow(p, parallel);
  if (few(p)) return multiply_few_rows(p, parallel);
  if (p.m <= kSomeRows) return some_rows(p, parallel);
  Tiles<T>{p}.run(parallel);
}

// A block of k. Rows of a triangle go by fewer, as what a tile leaves out is what its last or first row leaves out.
template <class Way> void multiply_near(const Product<typename Way::T>& p, const Block& l, Triangle triangle) {
  using T = typename Way::T;
  const bool add = p.o.accumulate || l.first > 0;
  const int64_t step = triangle.of == Triangle::none ? kRows : kStripRows;
  for (int64_t j = 0; j < p.n; j += kCols<T>)
    for (int64_t i = 0; i < p.m; i += step) {
      const int64_t rows = std::min(step, p.m - i), edge = i + triangle.at;
      int64_t first = l.first, last = l.first + l.depth, col = j;
      if (triangle.of == Triangle::columns) col = std::max(j, edge / kLanes<T> * kLanes<T>);
      if (triangle.of == Triangle::from) first = std::clamp(edge, first, last);
      if (triangle.of == Triangle::to) last = std::clamp(edge + rows - 1, first, last);
      const int64_t cols = std::min(p.n, j + kCols<T>) - col;
      if (cols <= 0) continue;
      const auto& tiles = cols > kLanes<T> ? kTiles<2, Way> : kTiles<1, Way>;
      tiles[size_t(rows - 1)](last - first, p.a.at(i, first).p, p.a.row, p.a.col, p.b.at(first, col).p, p.b.row,
                              p.c + i * p.ldc + col, p.ldc, add);
    }
}
template <class Way> void multiply_near(const Product<typename Way::T>& p, Triangle triangle) {
  if (p.k <= kDepth) return multiply_near<Way>(p, {0, p.k}, triangle);
  for (int64_t q = 0; q < blocks(p.k); ++q) multiply_near<Way>(p, block(p.k, q), triangle);
}
#endif
}  // namespace

template <class T>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> o) {
  if (m > 0 && n > 0) multiply<T>({m, n, k, a, b, c, ldc, o}, false);
}
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> o) {
  if (m > 0 && n > 0) multiply<T>({m, n, k, a, b, c, ldc, o}, true);
}
template <class T>
void gemm_near(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, bool accumulate,
               [[maybe_unused]] Triangle triangle) {
  const Product<T> p{m, n, k, a, b, c, ldc, {.accumulate = accumulate}};
#if TG_ISA_LEVEL >= 3
  multiply_near<Numbers<T>>(p, triangle);
#else
  if (m > 0 && n > 0) multiply<T>(p, false);
#endif
}
#if TG_ISA_LEVEL == 4
bool multiplies_pairs() { return bf16_path() == Bf16Path::avx512; }
void gemm_near_pairs(int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c, int64_t ldc,
                     Triangle triangle) {
  multiply_near<Bf16Pairs>({m, n, k, a, b, c, ldc, {}}, triangle);
}
#else
bool multiplies_pairs() { return false; }
void gemm_near_pairs(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, Triangle) {}
#endif
template <class T> void pack_panel(int64_t k, int64_t cols, MatView<T> x, T* to) {
#if TG_ISA_LEVEL >= 3
  pack_b(k, cols, x, to);
#else
  for (int64_t t = 0; t < k; ++t)
    for (int64_t j = 0; j < kPanel<T>; ++j) to[t * kPanel<T> + j] = j < cols ? x.p[t * x.row + j * x.col] : T(0);
#endif
}
template void gemm_near(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, bool, Triangle);
template void gemm_near(int64_t, int64_t, int64_t, MatView<double>, MatView<double>, double*, int64_t, bool, Triangle);
template void pack_panel(int64_t, int64_t, MatView<float>, float*);
template void pack_panel(int64_t, int64_t, MatView<double>, double*);
template void gemm(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, GemmOptions<float>);
template void gemm(int64_t, int64_t, int64_t, MatView<double>, MatView<double>, double*, int64_t, GemmOptions<double>);
template void gemm_serial(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t,
                          GemmOptions<float>);
template void gemm_serial(int64_t, int64_t, int64_t, MatView<double>, MatView<double>, double*, int64_t,
                          GemmOptions<double>);
}  // namespace tg::cpu::TG_ISA_NS
