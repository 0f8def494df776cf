// Matrix products of the CUDA backend, by cuBLASLt where it has an algorithm: one product, or a batch of equal ones, on
// row-major operands. Plans (descriptors and the chosen algorithm) are kept per device and shape, so a repeated call is
// one call of the library and allocates nothing. For the kernel files; views and broadcasting are theirs (matmul.cu).
#pragma once
#include <tapegrad/core/op.h>

#include <span>
#include <string>

namespace tg::cuda {

// A row-major matrix in device memory, or a batch of them: element (i, j) of matrix b is data[b * stride + i * ld + j],
// in elements. `transposed`: the product reads it as (j, i).
struct GemmOperand {
  const void* data = nullptr;
  int64_t ld = 0, stride = 0;  // a stride of 0 reads one matrix again and again
  bool transposed = false;
};
// out (m, n) = a (m, k) x b (k, n) as read, plus bias (n) to each row; `batch` of them.
struct Gemm {
  // Of all: f64, f32, bf16 (summed in f32, rounded once per 2^30 of k). i8: of a and b, k of each row neighbours, and
  // k, n and the steps between rows multiples of 4; out is i32, and there is no bias.
  DType dtype = DType::f32;
  MatmulPrecision products = MatmulPrecision::highest;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  GemmOperand a, b;
  const void* bias = nullptr;  // k >= 1 only
  void* out = nullptr;         // contiguous matrices, out_stride elements apart
  int64_t out_stride = 0;
};
// Any sizes; of size 0 nothing is done, and k = 0 gives zeros (contiguous batches). What the library has no algorithm
// for is multiplied by plain_product.h, and a line on stderr names the first. An Error(cuda) when the library fails.
void gemm(const Context&, const Gemm&);

// Files of measured algorithms (bench/gpu/gemm_*.txt) that were embedded when this was built, as texts.
std::span<const std::string_view> shipped_algorithms();

// How algorithms are chosen. The environment's values hold until set_gemm_options().
struct GemmOptions {
  // Times the library's candidates at the first call of each shape and keeps the fastest in the file, without which
  // this is an Error: results differ from algorithm to algorithm. Else takes the library's first. TG_AUTOTUNE=1.
  bool autotune = false;
  // A file of measured choices (JSON), read at the first product and, with autotune, written after each measurement.
  // Choices of another version of the library or another GPU are kept in the file and not used. TG_GEMM_CACHE=path.
  std::string file;
  // What is taken for products that the file lacks, and never with autotune.
  std::span<const std::string_view> shipped = shipped_algorithms();
  size_t plans = 1024;                 // kept per device; the one that was not used for longest goes
  int64_t largest = int64_t(1) << 30;  // sizes above are split, the library's are 32-bit
  int64_t largest_batch = 65535;
};
GemmOptions gemm_options();
void set_gemm_options(const GemmOptions&);  // forgets all plans; not while products are being queued

struct GemmStats {                    // of a device, since the options were last set
  uint64_t products = 0, plain = 0;   // made by the library, and by plain_product.h
  uint64_t hits = 0;                  // whose plan was held
  uint64_t timed = 0, from_file = 0;  // plans whose algorithm was measured here, or read
  uint64_t held = 0;                  // plans now
  uint64_t foreign = 0;               // entries of the file for another version or GPU
};
GemmStats gemm_stats(int device = 0);

}  // namespace tg::cuda
