// C (m x n, rows ldc apart) = or += A B; A and B have row and column strides. On AVX2 and AVX-512, element (i, j)
// depends bit for bit on row i of A, column j of B and k alone, in any batch, with any number of threads and at any
// address: it is the sum over blocks of at most 384 terms, in order; a block is one chain of FMAs. For n up to one
// vector, n and layouts matter too. The baseline (Eigen) guarantees none of this.
#pragma once
#include <tapegrad/core/mode.h>
#include <tapegrad/cpu/gemm/gemm_types.h>

namespace tg::cpu::TG_ISA_NS {

// C must not overlap A or B.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> = {});
// gemm() of f32, by bf16 parts where allowed and faster. `finish` may run twice for a row: rows outside the parts'
// range are recomputed.
void gemm_as(MatmulPrecision, int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c,
             int64_t ldc, GemmOptions<float> = {});
template <class T>
void gemm_as(MatmulPrecision, int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc,
             GemmOptions<T> o = {}) {
  gemm<T>(m, n, k, a, b, c, ldc, o);
}
// gemm() on the calling thread, for use inside a tile.
template <class T>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> = {});

// Operands in cache (attention.cpp): no packing or threads. Skips register tiles that a Triangle excludes. Panels have
// kPanel columns, whole vectors.
template <class T> inline constexpr int64_t kPanel = kRowsAlone ? 2 * kVector<T> : 64;
struct Triangle {
  enum Of { none, columns, from, to } of = none;
  // columns: C's row i is needed from column i + at on. from: A's row i is 0 before column i + at; to: from it on.
  int64_t at = 0;
};
// Rows of B are contiguous; n is a multiple of the vector.
template <class T>
void gemm_in_cache(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, bool accumulate,
                   Triangle = {});
// C = A B by vdpbf16ps, if multiplies_pairs() (cpu/runtime/product_path.h). A float holds two bf16 adjacent in k.
// Denormals count as 0.
bool multiplies_pairs();
void gemm_in_cache_pairs(int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c, int64_t ldc,
                         Triangle);
template <class T> void pack_panel(int64_t k, int64_t cols, MatView<T> x, T* to);

}  // namespace tg::cpu::TG_ISA_NS
