// Products of few rows: what they cost is reading the matrix, so it is read once for all rows, 16 bytes at a time, and
// summed in the type that is computed in. A block multiplies up to 16 rows; of more it reads its part of the matrix
// again. For matmul.cu, where the library would read the same bytes with kernels made for many rows, and for
// fragments.cu, where each row names its matrix. A row comes out the same whatever rows are beside it.
#pragma once
#include <tapegrad/cuda/device/index_check.h>

namespace tg::cuda {

inline constexpr int64_t kFewRows = 16;

// y (rows, n) = x (rows, k) times a matrix, plus bias (n) unless null. The matrix is (k, n), or, with kTurned, (n, k):
// its lines are ld apart.
template <class T> struct FewRows {
  const T* x;
  int64_t rows, x_ld;
  const T* matrix;
  int64_t n, k, ld;
  const T* bias;
  T* y;
};
// Of each row the matrix that it names: they are `step` apart.
struct NamedMatrices {
  Ids index;
  int64_t count, step;
  IndexCheck check;
};

// Whether a call would read 16 bytes at a time.
template <class T> bool in_vectors(const FewRows<T>& p, bool turned, int64_t step = 0) {
  constexpr int V = kVec<T>;
  return aligned16(p.x) && aligned16(p.matrix) && p.x_ld % V == 0 && p.ld % V == 0 && step % V == 0 &&
         (turned ? p.k : p.n) % V == 0;
}
// All rows times one matrix. f32 and bf16, in vectors.
void multiply_few_rows(const Context&, const FewRows<float>&, bool turned);
void multiply_few_rows(const Context&, const FewRows<bf16>&, bool turned);
// Each row times the matrix that it names; those of rows that name none are zeros.
void multiply_named(const Context&, const FewRows<float>&, bool turned, const NamedMatrices&);
void multiply_named(const Context&, const FewRows<bf16>&, bool turned, const NamedMatrices&);
void multiply_named(const Context&, const FewRows<double>&, bool turned, const NamedMatrices&);

}  // namespace tg::cuda
