// Row-major GEMMs by cuBLASLt where it has an algorithm: one, or a batch of equal shapes. Plans are cached per device
// and shape. matmul.cu handles views and broadcasting.
#pragma once
#include <tapegrad/core/op.h>

#include <span>
#include <string>

namespace tg::cuda {

// Element (i, j) of matrix b is data[b * stride + i * ld + j]. `transposed`: read as (j, i).
struct GemmOperand {
  const void* data = nullptr;
  int64_t ld = 0, stride = 0;  // stride 0 repeats one matrix
  bool transposed = false;
};
// out (m, n) = a (m, k) b (k, n) + bias (n), `batch` times.
struct Gemm {
  // f64, f32, bf16 (f32 accumulators, rounded once per 2^30 of k) or i8. i8: a and b contiguous along k; k, n, row
  // strides multiples of 4; out is i32, without bias.
  DType dtype = DType::f32;
  MatmulPrecision products = MatmulPrecision::highest;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  GemmOperand a, b;
  const void* bias = nullptr;  // needs k >= 1
  void* out = nullptr;         // contiguous matrices, out_stride elements apart
  int64_t out_stride = 0;
};
// Size 0 does nothing, k = 0 gives zeros (contiguous batches). plain_product.h serves shapes without an algorithm of
// cuBLASLt; stderr names the first shape. An Error(cuda) if cuBLASLt fails.
void gemm(const Context&, const Gemm&);

// The build's measured algorithms (bench/gpu/gemm_*.txt).
std::span<const std::string_view> shipped_algorithms();

// Environment values hold until set_gemm_options().
struct GemmOptions {
  // Times candidates at a shape's first call and keeps the fastest in `file`; an Error without a file, since results
  // depend on the algorithm. False: cuBLASLt's first candidate. TG_AUTOTUNE=1.
  bool autotune = false;
  // Measured choices (JSON), read at the first GEMM and, with autotune, written after measurements. Entries of other
  // versions or GPUs stay unused. TG_GEMM_CACHE=path.
  std::string file;
  std::span<const std::string_view> shipped = shipped_algorithms();
  size_t plans = 1024;                 // plans per device, least recently used evicted
  int64_t largest = int64_t(1) << 30;  // larger sizes are split
  int64_t largest_batch = 65535;
};
GemmOptions gemm_options();
void set_gemm_options(const GemmOptions&);  // forgets plans

struct GemmStats {
  uint64_t products = 0, plain = 0;   // GEMMs by cuBLASLt; by plain_product.h
  uint64_t hits = 0;                  // cached plans used
  uint64_t timed = 0, from_file = 0;  // plans measured; read
  uint64_t held = 0;                  // cached plans
  uint64_t foreign = 0;               // foreign entries of the file
};
GemmStats gemm_stats(int device = 0);

}  // namespace tg::cuda
