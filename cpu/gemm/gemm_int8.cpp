#include <tapegrad/cpu/gemm/gemm_int8.h>
#include <tapegrad/cpu/gemm/gemm_packed.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <algorithm>
#if TG_ISA_LEVEL >= 3
#include <tapegrad/cpu/gemm/gemm_int8_avx2.h>
#include <tapegrad/cpu/gemm/gemm_int8_small_m.h>
#endif
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm/gemm_packed_avx512.h>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
using Int8Product = packed::Product<int8_t, int32_t>;
using Int8Kernels = packed::Kernels<int8_t, int32_t>;
constexpr int64_t kSerial = 1 << 22;  // multiply-adds; fewer run serially
constexpr int64_t kFew = 32;          // reading B bounds the time up to this m

// Portable C++: compilers vectorise int16 products.
namespace plain {
using packed::t_a, packed::t_b, packed::t_sums;
constexpr int64_t kDepth = 256, kHeight = 96, kWidth = 256;

// Rows are kDepth apart, zero-padded to a multiple of 16.
void widen(MatView<int8_t> v, int64_t rows, int64_t depth, int16_t* to) {
  if (v.col == 1 || v.row != 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t t = 0; t < depth; ++t) to[i * kDepth + t] = v.p[i * v.row + t * v.col];
  } else {
    for (int64_t i = 0; i < rows; i += 32)  // 32 elements per cache line
      for (int64_t t = 0; t < depth; ++t)
        for (int64_t r = i; r < std::min(rows, i + 32); ++r) to[r * kDepth + t] = v.p[r + t * v.col];
  }
  if (depth < kDepth)
    for (int64_t i = 0; i < rows; ++i) std::fill_n(to + i * kDepth + depth, (-depth) & 15, int16_t(0));
}
template <int R, int N> void add_dots(int64_t depth, const int16_t* a, const int16_t* b, uint32_t* sums, int64_t ld) {
  int32_t s[R][N] = {};
  for (int64_t t = 0; t < depth; ++t)
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < N; ++c) s[r][c] += int32_t(a[r * kDepth + t]) * int32_t(b[c * kDepth + t]);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < N; ++c) sums[r * ld + c] += uint32_t(s[r][c]);
}
void multiply(const Int8Product& p, bool parallel) {
  const packed::Cut cut{kHeight, kWidth, ceil_div(p.m, kHeight), ceil_div(p.n, kWidth)};
  cut.for_tiles(p.m, p.n, parallel, [&](int64_t i, int64_t rows, int64_t j, int64_t cols) {
    auto* const sums = t_sums.get<int32_t>(rows * cols);
    auto* const bits = reinterpret_cast<uint32_t*>(sums);  // unsigned: sums may wrap
    std::fill_n(sums, rows * cols, 0);
    for (int64_t q = 0; q < p.k; q += kDepth) {
      const int64_t depth = std::min(kDepth, p.k - q), whole = ceil_div(depth, 16) * 16;
      auto *const a = t_a.get<int16_t>(rows * kDepth), *const b = t_b.get<int16_t>(cols * kDepth);
      widen(p.a.at(i, q), rows, depth, a);
      widen(p.b.at(q, j).transposed(), cols, depth, b);
      for (int64_t y = 0; y < cols; y += y + 4 <= cols ? 4 : 1)
        for (int64_t x = 0; x < rows; x += x + 2 <= rows ? 2 : 1) {
          const auto add = y + 4 <= cols ? (x + 2 <= rows ? add_dots<2, 4> : add_dots<1, 4>)
                                         : (x + 2 <= rows ? add_dots<2, 1> : add_dots<1, 1>);
          add(whole, a + x * kDepth, b + y * kDepth, bits + x * cols + y, cols);
        }
    }
    for (int64_t r = 0; r < rows; ++r) p.store(i + r, j, cols, sums + r * cols);
  });
}
}  // namespace plain

#if TG_ISA_LEVEL == 4
struct TileDot {
  template <int C, int A, int B> static void add() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};
#endif

// vpdpbusd multiplies unsigned by signed: packed B has 128 added, and `starts` subtracts the excess.
const Int8Kernels* kernels(Int8Path path) {
  using namespace packed;
#if TG_ISA_LEVEL == 4
  static constexpr Int8Kernels kAmx{64,
                                    pack_step<false, 0, int8_t>,
                                    pack_step<true, 0, int8_t>,
                                    amx_block<TileDot, int32_t>,
                                    nullptr,
                                    enter_tiles,
                                    leave_tiles};
  static constexpr Int8Kernels kAvx512{64, pack_step<false, 0, int8_t>, pack_step<true, 128, int8_t>,
                                       avx512_block<small_m::Evex, int32_t>, starts_of_rows};
  if (path == Int8Path::amx) return &kAmx;
  if (path == Int8Path::avx512_vnni) return &kAvx512;
#endif
#if TG_ISA_LEVEL >= 3
  static constexpr Int8Kernels kVex{64, pack_step256<false, false, 0>, pack_step256<false, true, 128>,
                                    block256<small_m::Vex>, starts_of_rows};
  static constexpr Int8Kernels kMadd{32, pack_step256<true, false, 0>, pack_step256<true, true, 0>,
                                     block256<small_m::Madd>};
  if (path == Int8Path::avx_vnni) return &kVex;
  if (path == Int8Path::avx2) return &kMadd;
#endif
  (void)path;
  return nullptr;
}

#if TG_ISA_LEVEL >= 3
decltype(&small_m::multiply<small_m::Madd>) of_small_m(Int8Path path) {
#if TG_ISA_LEVEL == 4
  if (path == Int8Path::avx512_vnni || (path == Int8Path::amx && has(Int8Path::avx512_vnni)))
    return small_m::multiply<small_m::Evex>;
#endif
  if (path == Int8Path::avx_vnni) return small_m::multiply<small_m::Vex>;
  return path == Int8Path::avx2 ? small_m::multiply<small_m::Madd> : nullptr;
}
#endif
}  // namespace

void gemm_int8(int64_t m, int64_t n, int64_t k, MatView<int8_t> a, MatView<int8_t> b,
               FunctionRef<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)> store) {
  if (m == 0 || n == 0) return;
  const Int8Path path = int8_path();
  const bool parallel = std::max(m, kFew) * n * k >= kSerial;
#if TG_ISA_LEVEL >= 3
  const auto small_m = of_small_m(path);
  if (small_m && m <= small_m::kRows && a.col == 1 && b.row == 1) return small_m(m, n, k, a, b, store, parallel);
#endif
  const auto store_sums = [&](int64_t i, int64_t j, int64_t some, int32_t* sums) { store(i, j, some, sums); };
  const Int8Product p{m, n, k, a, b, store_sums};
  const auto blocks = kernels(path);
  if (blocks && k > 0) return packed::Blocked(p, *blocks, parallel).run();
  plain::multiply(p, parallel);
}
}  // namespace tg::cpu::TG_ISA_NS
