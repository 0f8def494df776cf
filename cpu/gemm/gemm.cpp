#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/runtime/product_path.h>
#if TG_ISA_LEVEL >= 3
#include <tapegrad/cpu/gemm/gemm_small_k.h>
#include <tapegrad/cpu/gemm/gemm_small_n.h>
#else
#include <tapegrad/cpu/gemm/gemm_eigen.h>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
#if TG_ISA_LEVEL >= 3
using namespace tiles;
template <class T> constexpr int64_t kSerial = 2 * kTile<T>;  // multiply-adds; fewer run serially
// Up to this m, one tile reads and packs each panel of B.
constexpr int64_t kMediumRows = 96;
constexpr int64_t kFewTiles = 4;  // rows are split if fewer
// Low register tiles: a Triangle skips whole ones.
constexpr int kInCacheRows = TG_ISA_LEVEL == 4 ? 8 : 6;

// Unpacked A is slower on AVX2, except for few rows or a small contiguous B.
template <class T> bool fits_medium_m(const Product<T>& p) {
  if (!kPacksA || p.m <= 2 * kRows) return p.m <= kMediumRows;
  return p.m <= kMediumRows && p.a.col == 1 && p.b.col == 1 && p.n * p.k <= small_k::kInCache<T>;
}
// A is read in place; tiles pack panels of B into L1. Few tiles, B unpacked: rows are split too.
template <class T> void run_medium_m(const Product<T>& p, bool parallel) {
  const int64_t strips = ceil_div(p.n, kCols<T>), per_tile = parallel ? std::clamp<int64_t>(strips / 32, 1, 8) : strips;
  const int64_t step = rows_at_once(p.a), tiles = ceil_div(strips, per_tile), steps = ceil_div(p.m, step);
  const int64_t cuts = parallel && p.b.col == 1 && tiles < kFewTiles ? ceil_div(2 * kFewTiles, tiles) : 1;
  const int64_t some = ceil_div(steps, cuts) * step;
  for_tiles(parallel, tiles * ceil_div(p.m, some), [&](int64_t part) {
    T* to = t_own.get<T>(kDepth * kCols<T>);
    const int64_t t = part % tiles, first = part / tiles * some, last = std::min(p.m, first + some);
    const int64_t end = std::min(p.n, (t + 1) * per_tile * kCols<T>);
    for (int64_t j = t * per_tile * kCols<T>; j < end; j += kCols<T>) {
      const int64_t cols = std::min<int64_t>(kCols<T>, end - j);
      for (int64_t q = 0; q < blocks(p.k); ++q) {
        const Block l = block(p.k, q);
        MatView<T> b = p.b.at(l.first, j);
        if (b.col != 1 || (cols > kLanes<T> && cols != kCols<T>)) pack_b(l.depth, cols, b, to), b = {to, kCols<T>, 1};
        for (int64_t i = first; i < last; i += step)
          add_tile(p, l, i, std::min<int64_t>(step, last - i), j, cols, p.a.at(i, l.first), b.p, b.row);
      }
      p.finish(first, last - first, j, cols);
    }
  });
}
// Few rows, bound by one read of B.
template <class T> bool fits_small_m(const Product<T>& p) {
  if (p.m > small_m::kMost || p.k < 8 || p.n <= kLanes<T> || (p.b.row != 1 && p.b.col != 1)) return false;
  return !p.o.accumulate || p.k <= kDepth;  // the sum is one FMA chain
}
template <class T> void run_small_m(const Product<T>& p, bool parallel) {
  const auto store = [&](int64_t i, int64_t j, int64_t n, const T* sums) {
    T* const c = p.c + i * p.ldc + j;
    for (int64_t s = 0; s < n; ++s) c[s] = p.o.accumulate ? c[s] + sums[s] : sums[s];
    p.finish(i, 1, j, n);
  };
  small_m::Product<small_m::ScalarFma<T>>(p.m, p.n, p.k, p.a, p.b, store).run(parallel);
}

// The first path that fits runs. README.md has a diagram.
template <class T> struct Path {
  std::string_view name;
  bool (*fits)(const Product<T>&);
  void (*run)(const Product<T>&, bool parallel);
};
template <class T>
constexpr Path<T> kPaths[] = {
    {"small_n, lanes along k", small_n::fits_dot<T>, small_n::run_dot<T>},
    {"small_n, lanes along m", small_n::fits_axpy<T>, small_n::run_axpy<T>},
    {"small_k, A in registers", small_k::fits_registers<T>, small_k::run_registers<T>},
    {"small_k, strips of C", small_k::fits_strips<T>, small_k::run_strips<T>},
    {"small_m", fits_small_m<T>, run_small_m<T>},
    {"medium_m", fits_medium_m<T>, run_medium_m<T>},
    {"tiles", [](const Product<T>&) { return true; },
     [](const Product<T>& p, bool parallel) { Tiles<T>{p}.run(parallel); }},
};

template <class T> void multiply(const Product<T>& p, bool parallel) {
  if (p.k == 0) {
    for (int64_t i = 0; !p.o.accumulate && i < p.m; ++i) std::fill_n(p.c + i * p.ldc, p.n, T(0));
    return p.finish(0, p.m, 0, p.n);
  }
  parallel = parallel && std::max<int64_t>(p.m, 8) * p.n * p.k >= kSerial<T>;
  for (const Path<T>& path : kPaths<T>)
    if (path.fits(p)) return path.run(p, parallel);
}

template <class Fma> void multiply_in_cache(const Product<typename Fma::T>& p, const Block& l, Triangle triangle) {
  using T = typename Fma::T;
  const bool add = p.o.accumulate || l.first > 0;
  const int64_t step = triangle.of == Triangle::none ? rows_at_once(p.a) : kInCacheRows;
  for (int64_t j = 0; j < p.n; j += kCols<T>)
    for (int64_t i = 0; i < p.m; i += step) {
      const int64_t rows = std::min(step, p.m - i), edge = i + triangle.at;
      int64_t first = l.first, last = l.first + l.depth, col = j;
      if (triangle.of == Triangle::columns) col = std::max(j, edge / kLanes<T> * kLanes<T>);
      if (triangle.of == Triangle::from) first = std::clamp(edge, first, last);
      if (triangle.of == Triangle::to) last = std::clamp(edge + rows - 1, first, last);
      const int64_t cols = std::min(p.n, j + kCols<T>) - col;
      if (cols <= 0) continue;
      const auto& tiles = cols > kLanes<T> ? kTiles<2, Fma> : kTiles<1, Fma>;
      tiles[size_t(rows - 1)](last - first, p.a.at(i, first).p, p.a.row, p.a.col, p.b.at(first, col).p, p.b.row,
                              p.c + i * p.ldc + col, p.ldc, add);
    }
}
template <class Fma> void multiply_in_cache(const Product<typename Fma::T>& p, Triangle triangle) {
  if (p.k <= kDepth) return multiply_in_cache<Fma>(p, {0, p.k}, triangle);
  for (int64_t q = 0; q < blocks(p.k); ++q) multiply_in_cache<Fma>(p, block(p.k, q), triangle);
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
void gemm_in_cache(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, bool accumulate,
                   [[maybe_unused]] Triangle triangle) {
  const Product<T> p{m, n, k, a, b, c, ldc, {.accumulate = accumulate}};
#if TG_ISA_LEVEL >= 3
  multiply_in_cache<ScalarFma<T>>(p, triangle);
#else
  if (m > 0 && n > 0) multiply<T>(p, false);
#endif
}
#if TG_ISA_LEVEL == 4
bool multiplies_pairs() { return bf16_path() == Bf16Path::avx512; }
void gemm_in_cache_pairs(int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c, int64_t ldc,
                         Triangle triangle) {
  multiply_in_cache<Bf16Pairs>({m, n, k, a, b, c, ldc, {}}, triangle);
}
#else
bool multiplies_pairs() { return false; }
void gemm_in_cache_pairs(int64_t, int64_t, int64_t, MatView<float>, MatView<float>, float*, int64_t, Triangle) {}
#endif
template <class T> void pack_panel(int64_t k, int64_t cols, MatView<T> x, T* to) {
#if TG_ISA_LEVEL >= 3
  pack_b(k, cols, x, to);
#else
  for (int64_t t = 0; t < k; ++t)
    for (int64_t j = 0; j < kPanel<T>; ++j) to[t * kPanel<T> + j] = j < cols ? x.p[t * x.row + j * x.col] : T(0);
#endif
}
#define TG_INSTANTIATE(T)                                                                                      \
  template void gemm_in_cache(int64_t, int64_t, int64_t, MatView<T>, MatView<T>, T*, int64_t, bool, Triangle); \
  template void pack_panel(int64_t, int64_t, MatView<T>, T*);                                                  \
  template void gemm(int64_t, int64_t, int64_t, MatView<T>, MatView<T>, T*, int64_t, GemmOptions<T>);          \
  template void gemm_serial(int64_t, int64_t, int64_t, MatView<T>, MatView<T>, T*, int64_t, GemmOptions<T>)
TG_INSTANTIATE(float);
TG_INSTANTIATE(double);
#undef TG_INSTANTIATE
}  // namespace tg::cpu::TG_ISA_NS
