// No other file includes Eigen.
#pragma once
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <Eigen/Core>
#include <algorithm>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
// Eigen's expressions special-case vectors and small matrices: most of the compile time, and sums depend on alignment.
template <class T, int A, int B>
void add_product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
  using namespace Eigen::internal;
  constexpr int dyn = Eigen::Dynamic;
  gemm_blocking_space<Eigen::RowMajor, T, T, dyn, dyn, dyn> blocking(m, n, k, 1, true);
  general_matrix_matrix_product<int64_t, T, A, false, T, B, false, Eigen::RowMajor, 1>::run(
      m, n, k, a, lda, b, ldb, c, 1, ldc, T(1), blocking, nullptr);
}
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
// Split of C that packs least: each row of tiles packs B, each column A.
struct Cut {
  int64_t rows, cols, m, n;  // tiles down and across; m x n: a tile
  Cut(int64_t size_m, int64_t size_n, int64_t k) {
    constexpr int64_t kTile = 1 << 22;  // multiply-adds: about 60 us
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
}  // namespace tg::cpu::TG_ISA_NS
