#include <tapegrad/core/check.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#include <tapegrad/cuda/gemm/gemm_plan.h>

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <optional>

namespace tg::cuda {
#if defined(TG_CUDA_EMULATED) || CUBLAS_VERSION >= 120900  // 12.9 added scales per row
namespace {
struct Shape8 {
  int device;
  int64_t m, n, k;
  Fp8Format of_x, of_weight;
  DType dtype;
  auto operator<=>(const Shape8&) const = default;
};
struct Library {
  std::mutex mutex;
  std::map<int, LtHandle> handles;
  std::map<Shape8, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // nullopt: refused
  uint64_t refusals = 0;
};
Library& library() {  // leaked
  static auto& l = *new Library;
  return l;
}
cudaDataType type_of(Fp8Format f) { return f == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }
cudaDataType type_of(DType d) { return d == DType::f32 ? CUDA_R_32F : d == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F; }

LtLayout layout(cudaDataType t, int64_t rows, int64_t cols, std::string_view op) {
  cublasLtMatrixLayout_t l = nullptr;
  check_lt(cublasLtMatrixLayoutCreate(&l, t, uint64_t(rows), uint64_t(cols), rows), op, "describing a matrix");
  return LtLayout(l);
}
// False if cuBLASLt is too old.
template <class T> bool set(const LtDesc& d, cublasLtMatmulDescAttributes_t a, const T& value) {
  return cublasLtMatmulDescSetAttribute(d.get(), a, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}
template <class T>
void prefer(const LtPreference& p, cublasLtMatmulPreferenceAttributes_t a, const T& value, std::string_view op) {
  check_lt(cublasLtMatmulPreferenceSetAttribute(p.get(), a, &value, sizeof value), op, "setting a preference");
}
LtPreference preference(std::string_view op) {
  cublasLtMatmulPreference_t raw = nullptr;
  check_lt(cublasLtMatmulPreferenceCreate(&raw), op, "making preferences");
  LtPreference p(raw);
  prefer(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kGemmWorkspace), op);
  prefer(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), op);
  for (const auto a : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(p, a, uint32_t(16), op);
  return p;
}
}  // namespace

bool fp8_shape_fits(const Context& c, int64_t m, int64_t n, int64_t k) {
  const Properties& gpu = properties(c.device.index);
  return gpu.major == 9 && gpu.minor == 0 && m % 4 == 0 && n % 16 == 0 && k % 16 == 0 && m > 0 && n > 0 && k > 0 &&
         std::max({m, n, k}) < int64_t(1) << 31;
}
namespace {
bool multiplied(const Context& c, const GemmFp8& g, Library& l) {
  const auto handle = [&] {
    LtHandle& known = l.handles[c.device.index];
    cublasLtHandle_t h = nullptr;
    if (!known) check_lt(cublasLtCreate(&h), c.op, "starting the library"), known.reset(h);
    return known.get();
  };
  if (l.algorithms.size() > 4096) l.algorithms.clear();
  const auto [known, fresh] =
      l.algorithms.try_emplace({c.device.index, g.m, g.n, g.k, g.of_x, g.of_weight, g.dtype}, std::nullopt);
  std::optional<cublasLtMatmulAlgo_t>& algorithm = known->second;
  if (!fresh && !algorithm) return false;

  cublasLtMatmulDesc_t raw = nullptr;
  check_lt(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), c.op, "describing a product");
  const LtDesc desc(raw);
  const int32_t rows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  // Without FAST_ACCUM, which keeps fewer bits.
  if (!set(desc, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_T)) ||
      !set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, rows) || !set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, rows) ||
      !set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.scale_weight) ||
      !set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.scale_x) ||
      !set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(0)))
    return false;
  const LtLayout a = layout(type_of(g.of_weight), g.k, g.n, c.op), b = layout(type_of(g.of_x), g.k, g.m, c.op),
                 d = layout(type_of(g.dtype), g.n, g.m, c.op);
  if (fresh) {
    const LtPreference wanted = preference(c.op);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(handle(), desc.get(), a.get(), b.get(), d.get(), d.get(),
                                                       wanted.get(), 1, &found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return false;
    algorithm = found.algo;
  }
  const Scratch workspace(c, kGemmWorkspace);
  const float one = 1, zero = 0;
  const auto status =
      cublasLtMatmul(handle(), desc.get(), &one, g.weight, a.get(), g.x, b.get(), &zero, g.out, d.get(), g.out, d.get(),
                     &*algorithm, workspace.as<void>(), kGemmWorkspace, stream_of(c.device.index));
  if (refused(status)) return algorithm.reset(), false;
  check_lt(status, c.op, fmt::format("the product of 8-bit floats of {} x {} x {}", g.m, g.n, g.k));
  launched(c);
  return true;
}
}  // namespace
bool gemm_fp8(const Context& c, const GemmFp8& g) {
  Library& l = library();
  const std::lock_guard lock(l.mutex);
  if (multiplied(c, g, l)) return true;
  if (++l.refusals == 1)
    fmt::print(stderr,
               "tapegrad: [{}] cuBLASLt has no algorithm for 8-bit floats of {} x {} x {}. TF32, which is slower, "
               "computes it and any other without an algorithm.\n",
               c.op, g.m, g.n, g.k);
  return false;
}
uint64_t fp8_refusals() {
  Library& l = library();
  const std::lock_guard lock(l.mutex);
  return l.refusals;
}
#else
bool fp8_shape_fits(const Context&, int64_t, int64_t, int64_t) { return false; }
bool gemm_fp8(const Context&, const GemmFp8&) { return false; }
uint64_t fp8_refusals() { return 0; }
#endif
}  // namespace tg::cuda
