// A plan of cuBLASLt: the descriptors of one product, of one shape, and the algorithm chosen for it. For gemm.cpp and
// gemm_file.cpp.
#pragma once
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/lt_api.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <cstring>
#include <memory>
#include <vector>

namespace tg::cuda {

inline constexpr int kMostAlignment = 4;  // of a key, log2 of bytes

// All that the choice of an algorithm depends on, in the library's column-major terms: D (m, n) = op(A) op(B).
struct GemmKey {
  int64_t m, n, k, lda, ldb, ldd, batch, stride_a, stride_b, stride_d;
  DType dtype;
  MatmulPrecision products;
  uint8_t trans_a, trans_b, bias;
  uint8_t align_a, align_b, align_d, align_bias;  // log2 of bytes, of the real pointers
  uint8_t zero[7];
  GemmKey() { std::memset(static_cast<void*>(this), 0, sizeof *this); }
  bool operator==(const GemmKey& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
};
static_assert(std::has_unique_object_representations_v<GemmKey>, "keys are compared and hashed as bytes");
struct GemmKeyHash {
  size_t operator()(const GemmKey&) const;
};
std::string describe(const GemmKey&);  // "bf16 768 x 4096 x 3072", for messages

// The library has no way to make this product on this GPU: another way must.
bool refused(cublasStatus_t);
// Throws an Error(cuda) "[op] what failed: ...", unless s is success.
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

#ifdef TG_CUDA_EMULATED  // which keeps a dozen bytes for each, and whose algorithms use little
inline constexpr size_t kGemmWorkspace = size_t(64) << 10;
#else  // what the fastest algorithms of compute capability 9.0 may want
inline constexpr size_t kGemmWorkspace = size_t(32) << 20;
#endif

struct GemmPointers {
  const void *a, *b, *bias;
  void* d;
  void* workspace;  // kGemmWorkspace bytes, 256-byte aligned
  bool accumulate;  // D += instead of D =
};
// Not thread-safe: the bias pointer is part of the descriptor.
class GemmPlan {
 public:
  // The library's first candidates, which may be none, for operands of this alignment; `bias` stands for its alignment.
  GemmPlan(cublasLtHandle_t, const GemmKey&, const void* bias, std::string_view op);
  const std::vector<cublasLtMatmulHeuristicResult_t>& candidates() const { return candidates_; }
  void choose(size_t candidate) { algorithm_ = candidates_[candidate].algo, chosen_ = true; }
  bool adopt(const cublasLtMatmulAlgo_t&);  // false: the library does not take it for this product
  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }
  // By the chosen algorithm; false if the library refuses it: then nothing was done.
  bool run_chosen(const GemmPointers&, cudaStream_t, std::string_view op);
  // By the chosen algorithm, or where the library refuses that, by the first candidate which it does not refuse. False
  // if there is none: then nothing was done.
  bool run(const GemmPointers&, cudaStream_t, std::string_view op);

 private:
  cublasLtHandle_t handle_;
  GemmKey key_;
  LtDesc desc_;
  LtLayout a_, b_, d_;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates_;
  cublasLtMatmulAlgo_t algorithm_{};
  bool chosen_ = false;  // there is an algorithm
};

}  // namespace tg::cuda
