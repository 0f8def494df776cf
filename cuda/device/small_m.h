// Bound by reading the matrix: a block reads it once for up to 16 rows, 16 bytes per load. cuBLASLt's kernels are tuned
// for many rows. A row's result is independent of others.
#pragma once
#include <tapegrad/cuda/device/index_check.h>

namespace tg::cuda {

inline constexpr int64_t kMaxSmallM = 16;

// y (rows, n) = x (rows, k) matrix + bias (n) unless null. Matrix: (k, n), or (n, k) if kTransposed.
template <class T> struct SmallM {
  const T* x;
  int64_t rows, x_ld;
  const T* matrix;
  int64_t n, k, ld;
  const T* bias;
  T* y;
};
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
// f32 or bf16, in vectors.
void multiply_small_m(const Context&, const SmallM<float>&, bool transposed);
void multiply_small_m(const Context&, const SmallM<bf16>&, bool transposed);
void multiply_named(const Context&, const SmallM<float>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<bf16>&, bool transposed, const NamedMatrices&);
void multiply_named(const Context&, const SmallM<double>&, bool transposed, const NamedMatrices&);

}  // namespace tg::cuda
