#include <tapegrad/core/check.h>
#include <tapegrad/cuda/gemm/gemm_plan.h>

namespace tg::cuda {
namespace {
constexpr int kCandidates = 32;  // ranked by heuristics

struct Types {
  cudaDataType data, result, scale;
  cublasComputeType_t compute;
};
Types types_of(const GemmKey& k) {
  if (k.dtype == DType::f64) return {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
  if (k.dtype == DType::bf16) return {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
  if (k.dtype == DType::i8) return {CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I};
  constexpr cublasComputeType_t by_precision[] = {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32,
                                                  CUBLAS_COMPUTE_32F_FAST_16BF};
  return {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, by_precision[size_t(k.products)]};
}
template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const T& value, std::string_view op) {
  check_lt(cublasLtMatmulDescSetAttribute(d, a, &value, sizeof value), op, "describing a product");
}
template <class T>
void set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const T& value, std::string_view op) {
  check_lt(cublasLtMatrixLayoutSetAttribute(l, a, &value, sizeof value), op, "describing a matrix");
}
template <class T>
void set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const T& value, std::string_view op) {
  check_lt(cublasLtMatmulPreferenceSetAttribute(p, a, &value, sizeof value), op, "setting a preference");
}

LtLayout layout(cudaDataType t, int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride,
                std::string_view op) {
  cublasLtMatrixLayout_t l = nullptr;
  check_lt(cublasLtMatrixLayoutCreate(&l, t, uint64_t(rows), uint64_t(cols), ld), op, "describing a matrix");
  LtLayout r(l);
  if (batch > 1) {
    set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(batch), op);
    set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride, op);
  }
  return r;
}

// reductions: types of split-k partial sums.
LtPreference preference(const GemmKey& key, cublasLtReductionScheme_t reductions, std::string_view op) {
  cublasLtMatmulPreference_t p = nullptr;
  check_lt(cublasLtMatmulPreferenceCreate(&p), op, "making preferences");
  LtPreference r(p);
  set(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kGemmWorkspace), op);
  set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(reductions), op);
  set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(1) << key.align_a, op);
  set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(1) << key.align_b, op);
  set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(1) << key.align_d, op);
  set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(1) << key.align_d, op);
  return r;
}
}  // namespace

#ifndef TG_CUDA_EMULATED
SharedLibrary& lt_library() {  // leaked
  static auto& l = *new SharedLibrary(
      fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), TG_CUDA_LIBRARIES,
      fmt::format("Matrix products on a GPU need it. Install\n  apt install libcublas-{0}-{1} | dnf install "
                  "libcublas-{0}-{1}\nof NVIDIA's repository",
                  CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR));
  return l;
}
#endif

bool refused(cublasStatus_t s) { return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_ARCH_MISMATCH; }
void check_lt(cublasStatus_t s, std::string_view op, const std::string& what) {
  if (s == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Error::Kind::cuda, fmt::format("[{}] cuBLASLt: {} failed: {} ({}).", op, what, cublasLtGetStatusString(s),
                                             cublasLtGetStatusName(s)));
}

size_t GemmKeyHash::operator()(const GemmKey& k) const {
  StructuralHash h;
  for (size_t i = 0; i < sizeof k / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&k) + 8 * i, 8);
    h.add(word);
  }
  return size_t(h.a ^ h.b);
}
static_assert(sizeof(GemmKey) % 8 == 0);

std::string describe(const GemmKey& k) {
  constexpr const char* by_precision[] = {"", " in TF32", " in bf16"};
  return fmt::format("{}{}{} of {} x {} x {} (ld {}, {}, {})", name_of(k.dtype), by_precision[size_t(k.products)],
                     k.batch > 1 ? fmt::format(" x {}", k.batch) : "", k.m, k.n, k.k, k.lda, k.ldb, k.ldd);
}

GemmPlan::GemmPlan(cublasLtHandle_t handle, const GemmKey& key, const void* bias, std::string_view op)
    : handle_(handle), key_(key) {
  const Types t = types_of(key);
  cublasLtMatmulDesc_t d = nullptr;
  check_lt(cublasLtMatmulDescCreate(&d, t.compute, t.scale), op, "describing a product");
  desc_.reset(d);
  set(d, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N), op);
  set(d, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N), op);
  if (key.bias) {
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS), op);
    set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, op);
  }
  const auto rows = [](uint8_t trans, int64_t r, int64_t c) { return trans ? c : r; };
  a_ = layout(t.data, rows(key.trans_a, key.m, key.k), rows(key.trans_a, key.k, key.m), key.lda, key.batch,
              key.stride_a, op);
  b_ = layout(t.data, rows(key.trans_b, key.k, key.n), rows(key.trans_b, key.n, key.k), key.ldb, key.batch,
              key.stride_b, op);
  d_ = layout(t.result, key.m, key.n, key.ldd, key.batch, key.stride_d, op);
  const auto find = [&](cublasLtReductionScheme_t reductions) {
    candidates_.resize(kCandidates);
    int found = 0;
    const cublasStatus_t s =
        cublasLtMatmulAlgoGetHeuristic(handle, d, a_.get(), b_.get(), d_.get(), d_.get(),
                                       preference(key, reductions, op).get(), kCandidates, candidates_.data(), &found);
    if (refused(s))
      found = 0;
    else
      check_lt(s, op, "choosing an algorithm for " + describe(key));
    candidates_.resize(size_t(found));
    std::erase_if(candidates_, [](auto& c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  };
  // Partial sums in the compute type, else in the narrower output type.
  find(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  if (candidates_.empty()) find(CUBLASLT_REDUCTION_SCHEME_MASK);
  if (!candidates_.empty()) choose(0);
}

bool GemmPlan::adopt(const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t r{};
  if (cublasLtMatmulAlgoCheck(handle_, desc_.get(), a_.get(), b_.get(), d_.get(), d_.get(), &algorithm, &r) !=
          CUBLAS_STATUS_SUCCESS ||
      r.workspaceSize > kGemmWorkspace)
    return false;
  algorithm_ = algorithm, chosen_ = true;
  return true;
}

bool GemmPlan::run_chosen(const GemmPointers& p, cudaStream_t stream, std::string_view op) {
  if (key_.bias) set(desc_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias, op);
  const double f64[] = {1, double(p.accumulate)};
  const float f32[] = {1, float(p.accumulate)};
  const int32_t i32[] = {1, int32_t(p.accumulate)};
  const auto scalar = [&](int i) -> const void* {
    if (key_.dtype == DType::f64) return f64 + i;
    if (key_.dtype == DType::i8) return i32 + i;
    return f32 + i;
  };
  const cublasStatus_t s = cublasLtMatmul(handle_, desc_.get(), scalar(0), p.a, a_.get(), p.b, b_.get(), scalar(1), p.d,
                                          d_.get(), p.d, d_.get(), &algorithm_, p.workspace, kGemmWorkspace, stream);
  if (!refused(s)) check_lt(s, op, "the product " + describe(key_));
  return !refused(s);
}

bool GemmPlan::run(const GemmPointers& p, cudaStream_t stream, std::string_view op) {
  if (!chosen_ || run_chosen(p, stream, op)) return chosen_;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    choose(i);
    if (run_chosen(p, stream, op)) return true;
  }
  return chosen_ = false;
}

}  // namespace tg::cuda
