// Descriptors of one GEMM shape, and its algorithm.
#pragma once
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/lt_api.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace tg::cuda {

// Alignment (log2) in keys: up to 16 bytes, or 256. cuBLASLt gets the key's alignment.
constexpr uint8_t key_alignment(int log2) { return uint8_t(log2 >= 8 ? 8 : std::min(log2, 4)); }

// All that determines the algorithm, column-major: D (m, n) = op(A) op(B).
struct GemmKey {
  int64_t m, n, k, lda, ldb, ldd, batch, stride_a, stride_b, stride_d;
  DType dtype;
  MatmulPrecision products;
  uint8_t trans_a, trans_b, bias;
  uint8_t align_a, align_b, align_d, align_bias;  // log2 of alignments in bytes
  uint8_t zero[7];
  GemmKey() { std::memset(static_cast<void*>(this), 0, sizeof *this); }
  bool operator==(const GemmKey& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
};
static_assert(std::has_unique_object_representations_v<GemmKey>, "keys are compared and hashed as bytes");
struct GemmKeyHash {
  size_t operator()(const GemmKey&) const;
};
std::string describe(const GemmKey&);  // "bf16 768 x 4096 x 3072"

bool refused(cublasStatus_t);
// Throws an Error(cuda) "[op] what failed: ..." unless s is success.
void check_lt(cublasStatus_t s, std::string_view op, const std::string& what);

template <class T, const auto& Destroy> struct LtDestroy {
  using pointer = T;
  void operator()(T x) const { (void)Destroy(x); }
};
template <class T, const auto& Destroy> using LtObject = std::unique_ptr<T, LtDestroy<T, Destroy>>;
using LtHandle = LtObject<cublasLtHandle_t, cublasLtDestroy>;
using LtLayout = LtObject<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using LtDesc = LtObject<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LtPreference = LtObject<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

#ifdef TG_CUDA_EMULATED
inline constexpr size_t kGemmWorkspace = size_t(64) << 10;
#else
inline constexpr size_t kGemmWorkspace = size_t(32) << 20;
#endif

struct GemmPointers {
  const void *a, *b, *bias;
  void* d;
  void* workspace;  // kGemmWorkspace bytes, 256-byte aligned
  bool accumulate;  // D += instead of D =
};
// Not thread-safe: the descriptor holds the bias pointer.
class GemmPlan {
 public:
  // cuBLASLt's first candidates, possibly none.
  GemmPlan(cublasLtHandle_t, const GemmKey&, const void* bias, std::string_view op);
  const std::vector<cublasLtMatmulHeuristicResult_t>& candidates() const { return candidates_; }
  void choose(size_t candidate) { algorithm_ = candidates_[candidate].algo, chosen_ = true; }
  bool adopt(const cublasLtMatmulAlgo_t&);  // false: cuBLASLt refuses it
  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }
  // False if cuBLASLt refuses the algorithm.
  bool run_chosen(const GemmPointers&, cudaStream_t, std::string_view op);
  // Falls back to the next accepted candidate.
  bool run(const GemmPointers&, cudaStream_t, std::string_view op);

 private:
  cublasLtHandle_t handle_;
  GemmKey key_;
  LtDesc desc_;
  LtLayout a_, b_, d_;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates_;
  cublasLtMatmulAlgo_t algorithm_{};
  bool chosen_ = false;
};

}  // namespace tg::cuda
