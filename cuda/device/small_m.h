// Reading the matrix dominates, so it is read once for all rows, 16 bytes at a time. A block multiplies up to 16 rows;
// with more rows it reads its part again. The library would read the same bytes with kernels made for many rows. A
// row's result is independent of the other rows.
#pragma once
#include <tapegrad/cuda/device/index_check.h>

namespace tg::cuda {

inline constexpr int64_t kFewRows = 16;

// y (rows, n) = x (rows, k) times a matrix, plus bias (n) unless null. The matrix is (k, n), or with kTransposed (n,
// k).
template <class T> struct SmallM {
  const T* x;
  int64_t rows, x_ld;
  const T* matrix;
  int64_t n, k, ld;
  const T* bias;
  T* y;
};
// Each row's matrix, by index; they are `step` apart.
struct NamedMatrices {
  Ids index;
  int64_t count, step;
  IndexCheck check;
};

template <class T> bool in_vectors(const SmallM<T>& p, bool transposed, int64_t step = 0) {
  constexpr int V = kVec<T>;
  return aligned16(p.x) && aligned16(p.matrix) && p.x_ld % V == 0 && p.ld % V == 0 && step % V == 0 &&
         (transposed ? p.k : p.n) % V == 0;
}
// Multiplies all rows by one matrix: f32 or bf16, in vectors.
void multiply_small_m(const Context&, const SmallM<float>&, bool transposed);
void multiply_small_m(const Context&, const SmallM<bf16>&, bool transposed);
// Multiplies each row by its matrix; rows that name none are zeros.
void multiply_named(const Context&, const SmallM<float>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<bf16>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<double>&, bool transposed, const NamedMatrices&);

}  // namespace tg::cuda
