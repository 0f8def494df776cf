// Matrix products for kernels: C (m x n, rows of length ldc) = A B or C += A B, with A and B given by row and column
// strides. The cut into tiles depends on m, n and k alone, so results do not depend on the number of threads or on
// where the memory lies. On AVX2 and AVX-512, element (i, j) depends on row i of A, column j of B and k only, bit for
// bit; a row comes out the same alone and in any batch. It is the sum over blocks of at most 384 terms, in order, each
// block one chain of fused multiply-adds. Up to as many columns as a vector has, their number and the direction in
// which A and B lie matter too: there may be one chain per lane. Not so on the baseline, where Eigen computes.
#pragma once
#include <tapegrad/core/mode.h>
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/vector.h>

namespace tg::cpu::TG_ISA_NS {

// Whether a row comes out the same alone and in any batch, as said above.
inline constexpr bool kRowsAlone = TG_ISA_LEVEL >= 3;

template <class T> struct MatView {  // element (i, j) at p[i * row + j * col]; row or col must be 1 for speed
  const T* p;
  int64_t row, col;
  MatView at(int64_t i, int64_t j) const { return {p + i * row + j * col, row, col}; }
  MatView transposed() const { return {p, col, row}; }
};
template <class T> struct GemmOptions {
  bool accumulate = false;  // C += A B
  // Called once for each stretch of a row of C, from column j on, when its sums are complete and still in the cache.
  const FunctionRef<void(T* row, int64_t j, int64_t n)>* finish = nullptr;
};
// On the thread pool. C must not overlap A or B. float and double.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> = {});
// C = A B of f32, as the precision allows it: of bf16 parts of the operands where that is quicker, else by gemm().
void gemm_as(MatmulPrecision, int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c,
             int64_t ldc, GemmOptions<float> = {});
// On the calling thread, for use inside a tile.
template <class T>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, GemmOptions<T> = {});

// Products in caches, for kernels that keep operands there (cpu/attention/attention.cpp): nothing is packed and nothing
// cut, and of products of triangles only some of what is 0, or not wanted, is computed. A panel is kPanel wide, whole
// vectors.
template <class T> inline constexpr int64_t kPanel = kRowsAlone ? 2 * kVector<T> : 64;
struct Triangle {
  enum Of { none, columns, from, to } of = none;
  // columns: C's row i is wanted from column i + at on. from: A's row i is 0 before column i + at; to: from there on.
  int64_t at = 0;
};
// C = or += A B, where rows of B are n neighbours, whole vectors.
template <class T>
void gemm_in_cache(int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, T* c, int64_t ldc, bool accumulate,
                   Triangle = {});
// C = A B of bf16, if this machine's way of it is vdpbf16ps (cpu/runtime/bf16_path.h): each float of A and B is two
// neighbours in k. Denormal numbers are taken for 0.
bool multiplies_pairs();
void gemm_in_cache_pairs(int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c, int64_t ldc,
                         Triangle);
// x (k x cols, cols <= kPanel) to rows of kPanel elements, zeros after cols.
template <class T> void pack_panel(int64_t k, int64_t cols, MatView<T> x, T* to);

}  // namespace tg::cpu::TG_ISA_NS
