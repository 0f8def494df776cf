#pragma once
#include <optional>

#include <tapegrad/emulator/cublaslt.h>
#include <tapegrad/emulator/queue.h>

namespace simt::lt {

struct Layout {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld;
  std::int32_t order = CUBLASLT_ORDER_COL, batch = 1;
  std::int64_t stride = 0;
  std::uint32_t mode = CUBLASLT_BATCH_MODE_STRIDED;
  std::int64_t across() const { return order == CUBLASLT_ORDER_COL ? ld : 1; }
  std::int64_t down() const { return order == CUBLASLT_ORDER_COL ? 1 : ld; }
  bool operator==(const Layout&) const = default;
};

struct Desc {
  cublasComputeType_t compute;
  cudaDataType scale;
  std::int32_t pointers = CUBLASLT_POINTER_MODE_HOST, trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t bias_type = -1;
  std::int8_t fast_accumulation = 0;
  const float *scale_a = nullptr, *scale_b = nullptr, *scale_d = nullptr;
  std::int32_t scale_mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  std::int32_t scale_mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // A, B, C, D
};

struct Problem {
  Desc desc;
  Layout a, b, c, d;
  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.cols; }
  std::uint64_t k() const { return desc.trans_a == CUBLAS_OP_N ? a.cols : a.rows; }
  bool fp8() const { return is_fp8(a.type); }
  bool int8() const { return a.type == CUDA_R_8I; }
  cudaDataType bias_type() const;
  static bool is_fp8(cudaDataType t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }
};

struct Operands {
  const void *alpha, *a, *b, *beta, *c;
  void* d;
  void* workspace;
  std::size_t workspace_used;
};

struct Refusal {
  cublasStatus_t status;
  std::string why;
};
// nullopt: accepted.
std::optional<Refusal> refuses_problem(const Problem&);
std::optional<Refusal> refuses_operands(const Problem&, const Operands&);

std::size_t bytes_of(cudaDataType);
const char* name_of(cudaDataType);
void run_product(const Problem&, const Operands&, double alpha, double beta, const engine::Operation&);
// x is on the host or device.
double scalar(cudaDataType, const void*);

}  // namespace simt::lt
