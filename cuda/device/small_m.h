// GEMM with few rows is bound by reading the matrix. A block reads it once, 16 bytes per load, for up to 16 rows, again
// for more. cuBLASLt reads as much, but its kernels are tuned for many rows. A row's result is independent of other
// rows.
#pragma once
#include <tapegrad/cuda/device/index_check.h>

namespace tg::cuda {

inline constexpr int64_t kFewRows = 16;

// y (rows, n) = x (rows, k) matrix + bias (n) unless null. The matrix is (k, n), or (n, k) with kTransposed.
template <class T> struct SmallM {
  const T* x;
  int64_t rows, x_ld;
  const T* matrix;
  int64_t n, k, ld;
  const T* bias;
  T* y;
};
// Index of each row's matrix; matrices are `step` apart.
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
// One matrix for all rows: f32 or bf16, in vectors.
void multiply_small_m(const Context&, const SmallM<float>&, bool transposed);
void multiply_small_m(const Context&, const SmallM<bf16>&, bool transposed);
// One matrix per row; rows that name none become zeros.
void multiply_named(const Context&, const SmallM<float>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<bf16>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<double>&, bool transposed, const NamedMatrices&);

}  // namespace tg::cuda
