#include <tapegrad/cpu/gemm/gemm_bf16.h>
#include <tapegrad/cpu/gemm/gemm_packed.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <algorithm>
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm/gemm_amx_small_m.h>
#endif
#if TG_ISA_LEVEL >= 3
#include <tapegrad/cpu/gemm/gemm_small_m.h>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
using packed::t_a, packed::t_b, packed::t_sums;

struct Product {
  int64_t m, n, k;
  MatView<bf16> a, b;
  bf16* c;
  int64_t ldc;
  GemmOptions<bf16> o;

  // Rounds rows [i, i + rows), columns [j, j + cols) of C from sums, ld apart.
  void store(int64_t i, int64_t rows, int64_t j, int64_t cols, float* sums, int64_t ld) const {
    for (int64_t r = 0; r < rows; ++r, sums += ld) {
      if (o.finish) (*o.finish)(sums, j, cols);
      if (o.unrounded) {
        std::copy_n(sums, cols, o.unrounded + (i + r) * ldc + j);
        continue;
      }
      bf16* const to = c + (i + r) * ldc + j;
      for (int64_t s = 0; s < cols; ++s) to[s] = bf16(sums[s]);
    }
  }
  void operator()(int64_t i, int64_t j, int64_t cols, float* sums) const { store(i, 1, j, cols, sums, cols); }
};
// Widens blocks and calls gemm_serial in f32. Except with Eigen, the split changes no bit.
namespace widened {
constexpr int64_t kDepth = 384, kHeight = 192, kWidth = 256;

MatView<float> widen(MatView<bf16> v, int64_t rows, int64_t cols, bool by_rows, float* to) {
  if (v.row == 1 && v.col != 1 && !by_rows) return widen(v.transposed(), cols, rows, true, to).transposed();
  for (int64_t i = 0; i < rows; ++i) {
    const bf16* const from = v.p + i * v.row;
    float* const row = to + i * cols;
    if (v.col == 1)
      for (int64_t j = 0; j < cols; ++j) row[j] = from[j];
    else
      for (int64_t j = 0; j < cols; ++j) row[j] = from[j * v.col];
  }
  return {to, cols, 1};
}
void multiply(const Product& p, bool parallel) {
  const int64_t depth = ceil_div(p.k, ceil_div(p.k, kDepth));
  // A wider last tile: small_n would sum a few extra columns in another order.
  const packed::Cut cut{kHeight, kWidth, ceil_div(p.m, kHeight), std::max<int64_t>(1, p.n / kWidth)};
  cut.for_tiles(p.m, p.n, parallel, [&](int64_t i, int64_t rows, int64_t j, int64_t cols) {
    float* const sums = t_sums.get<float>(rows * cols);
    for (int64_t q = 0; q < p.k; q += depth) {
      const int64_t terms = std::min(depth, p.k - q);
      // Few columns: the sum order depends on A's layout, so rows become contiguous.
      const auto a = widen(p.a.at(i, q), rows, terms, p.n <= 16, t_a.get<float>(rows * terms));
      const auto b = widen(p.b.at(q, j), terms, cols, false, t_b.get<float>(terms * cols));
      gemm_serial<float>(rows, cols, terms, a, b, sums, cols, {.accumulate = q > 0});
    }
    p.store(i, rows, j, cols, sums, cols);
  });
}
}  // namespace widened

#if TG_ISA_LEVEL == 4
namespace paired {
constexpr int64_t kSerial = 1 << 21;  // multiply-adds; fewer run serially

void multiply(const Product& p, Bf16Path path, bool parallel) {
  using namespace packed;
  static constexpr Kernels<bf16, float> kAvx512{32, pack_step<false, 0, bf16>, pack_step<true, 0, bf16>,
                                                avx512_block<Avx512Bf16, float>};
  static constexpr Kernels<bf16, float> kAmx{
      32,         pack_step<false, 0, bf16>, pack_step<true, 0, bf16>, amx_block<AmxBf16, float>, nullptr, enter_tiles,
      leave_tiles};
  const packed::Product<bf16, float> product{p.m, p.n, p.k, p.a, p.b, p};
  Blocked(product, path == Bf16Path::amx ? kAmx : kAvx512, parallel && p.m * p.n * p.k >= kSerial).run();
}
}  // namespace paired
void run_amx_small_m(const Product& p, bool parallel) { packed::AmxSmallM({p.m, p.n, p.k, p.a, p.b, p}).run(parallel); }
#endif

#if TG_ISA_LEVEL >= 3
template <class Fma> void run_small_m(const Product& p, bool parallel) {
  small_m::Product<Fma>(p.m, p.n, p.k, p.a, p.b, p).run(parallel);
}
#endif

void multiply(const Product& p, bool parallel) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    float* const zeros = t_sums.get<float>(p.n);
    for (int64_t i = 0; i < p.m; ++i) {
      std::fill_n(zeros, p.n, 0.0f);
      p.store(i, 1, 0, p.n, zeros, p.n);
    }
    return;
  }
  const Bf16Path path = bf16_path();
#if TG_ISA_LEVEL >= 3
  if (p.m <= small_m::kMost && p.n > 16 && (p.b.row == 1 || p.b.col == 1)) {
    const bool pays = parallel && p.n * p.k >= (1 << 18);
    if (path == Bf16Path::f32) return run_small_m<small_m::Widened>(p, pays);
#if TG_ISA_LEVEL == 4
    if (path == Bf16Path::avx512) return run_small_m<small_m::Pairs>(p, pays);
    return run_amx_small_m(p, pays);
#endif
  }
#endif
#if TG_ISA_LEVEL == 4
  if (path != Bf16Path::f32) return paired::multiply(p, path, parallel);
#endif
  (void)path;
  widened::multiply(p, parallel);
}
}  // namespace

template <>
void gemm(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
          GemmOptions<bf16> o) {
  multiply({m, n, k, a, b, c, ldc, o}, true);
}
template <>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
                 GemmOptions<bf16> o) {
  multiply({m, n, k, a, b, c, ldc, o}, false);
}
}  // namespace tg::cpu::TG_ISA_NS
