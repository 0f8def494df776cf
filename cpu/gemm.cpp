// The only file that includes Eigen. Its namespace carries the ISA level (cmake/levels.cmake), or the linker would keep
// one level's code for all.
#include <tapegrad/cpu/gemm.h>
#include <tapegrad/cpu/thread_pool.h>

#include <Eigen/Core>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T, int Order> auto map(MatView<T> v, int64_t rows, int64_t cols) {
  using Mat = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>;
  return Eigen::Map<const Mat, 0, Eigen::OuterStride<>>(v.p, rows, cols,
                                                        Eigen::OuterStride<>(Order == Eigen::RowMajor ? v.row : v.col));
}
template <class T, class A, class B> void add_product(const A& a, const B& b, T* c, int64_t ldc) {
  using Mat = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Mat, 0, Eigen::OuterStride<>>(c, a.rows(), b.cols(), Eigen::OuterStride<>(ldc)).noalias() += a * b;
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
template <class T>
void tile(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions o) {
  using Eigen::ColMajor, Eigen::RowMajor;
  if (!o.accumulate)
    for (int64_t i = 0; i < m; ++i) std::fill(c + i * ldc, c + i * ldc + n, T(0));
  if (k == 0) return;
  if (a.col == 1 && b.col == 1)
    add_product(map<T, RowMajor>(a, m, k), map<T, RowMajor>(b, k, n), c, ldc);
  else if (a.col == 1)
    add_product(map<T, RowMajor>(a, m, k), map<T, ColMajor>(b, k, n), c, ldc);
  else if (b.col == 1)
    add_product(map<T, ColMajor>(a, m, k), map<T, RowMajor>(b, k, n), c, ldc);
  else
    add_product(map<T, ColMajor>(a, m, k), map<T, ColMajor>(b, k, n), c, ldc);
}
// The cut of an m x n product into rows x cols tiles. Each tile packs its own operands, so a cut of m packs B again and
// a cut of n packs A again: of the cuts with enough tiles, the one that packs least.
struct Cut {
  int64_t rows, cols, m, n;  // tiles down and across, and their sizes
  Cut(int64_t size_m, int64_t size_n, int64_t k) {
    constexpr int64_t kTile = 1 << 22;  // multiply-adds of a tile: some 60 us
    const int64_t want = std::clamp<int64_t>((size_m * size_n * k + kTile - 1) / kTile, 1, 16);
    int64_t least = INT64_MAX;
    for (int64_t r = 1; r <= want; ++r) {
      const int64_t c = (want + r - 1) / r, packed = r * size_n + c * size_m;
      if (packed < least) least = packed, rows = r, cols = c;
    }
    m = edge(size_m, rows, 4), n = edge(size_n, cols, 16);
    rows = (size_m + m - 1) / m, cols = (size_n + n - 1) / n;
  }
  static int64_t edge(int64_t size, int64_t pieces, int64_t multiple) {
    return ((size + pieces - 1) / pieces + multiple - 1) / multiple * multiple;
  }
};
}  // namespace

template <class T>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions o) {
  if (m == 0 || n == 0) return;
  std::vector<T> scratch_a, scratch_b;
  tile(m, n, k, packed(a, m, k, scratch_a), packed(b, k, n, scratch_b), c, ldc, o);
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions o) {
  if (m == 0 || n == 0 || k == 0 || m * n * k < (1 << 18)) return gemm_serial(m, n, k, a, b, c, ldc, o);
  std::vector<T> scratch_a, scratch_b;
  a = packed(a, m, k, scratch_a);
  b = packed(b, k, n, scratch_b);
  const Cut cut(m, n, k);
  parallel_for(cut.rows * cut.cols, [&](int64_t t) {
    const int64_t i = t / cut.cols * cut.m, j = t % cut.cols * cut.n;
    tile(std::min(cut.m, m - i), std::min(cut.n, n - j), k, a.at(i, 0), b.at(0, j), c + i * ldc + j, ldc, o);
  });
}
template void gemm(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, GemmOptions);
template void gemm(int64_t, int64_t, int64_t, MatView<double>, MatView<double>, double*, int64_t, GemmOptions);
template void gemm_serial(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, GemmOptions);
template void gemm_serial(int64_t, int64_t, int64_t, MatView<double>, MatView<double>, double*, int64_t, GemmOptions);
}  // namespace tg::cpu::TG_ISA_NS
