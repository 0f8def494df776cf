#pragma once
#include <doctest/doctest.h>
#include <tapegrad/emulator/cublaslt.h>
#include <tapegrad/emulator/emulator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace {
inline char* device_memory(const void* from, size_t bytes) {
  void* p = nullptr;
  REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess);
  REQUIRE(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  return static_cast<char*>(p);
}
struct Arena {  // 256-byte aligned, all zeros
  char* p;
  explicit Arena(size_t bytes) : p(device_memory(std::vector<char>(bytes, 0).data(), bytes)) {}
  ~Arena() { (void)cudaFree(p); }
};

// Rows of the table change one field each.
constexpr int64_t kNull = INT64_MIN;
struct Setup {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType scale = CUDA_R_32F, a_type = CUDA_R_16BF, b_type = CUDA_R_16BF, c_type = CUDA_R_16BF,
               d_type = CUDA_R_16BF;
  uint64_t m = 32, n = 32, k = 32;
  int32_t trans_a = CUBLAS_OP_T, trans_b = CUBLAS_OP_N;
  int64_t lda = 32, ldb = 32, ldc = 32, ldd = 32, d_stride = 32 * 32;
  int32_t batch = 1, d_batch = -1, order_a = CUBLASLT_ORDER_COL, order_d = CUBLASLT_ORDER_COL;
  uint32_t mode = CUBLASLT_BATCH_MODE_STRIDED, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t pointers = CUBLASLT_POINTER_MODE_HOST, bias_type = -1;
  int64_t aux_ld = 0;
  int32_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = mode_a;
  float alpha = 1, beta = 0;
  int64_t a = 0, b = 1 << 16, c = 1 << 17, d = 1 << 17, bias = kNull, aux = kNull, workspace = 1 << 18;
  int64_t scale_a = kNull, scale_b = kNull, scale_d = kNull;
  size_t workspace_bytes = 1 << 14;
  uint32_t promised = 16;  // alignment that the heuristic assumes
};
inline Setup f32() {
  Setup s;
  s.a_type = s.b_type = s.c_type = s.d_type = CUDA_R_32F;
  return s;
}
inline Setup int8(cudaDataType d) {
  Setup s;
  s.a_type = s.b_type = CUDA_R_8I;
  s.c_type = s.d_type = d;
  s.compute = d == CUDA_R_32F ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32I;
  s.scale = d == CUDA_R_32I ? CUDA_R_32I : CUDA_R_32F;
  return s;
}
inline Setup fp8() {
  Setup s;
  s.a_type = s.b_type = CUDA_R_8F_E4M3;
  return s;
}

struct Answer {
  cublasStatus_t status;
  std::string why;
};
struct Objects {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c, d;
  cublasLtMatmulPreference_t preference;
  ~Objects() {
    cublasLtMatmulPreferenceDestroy(preference);
    for (auto l : {a, b, c, d}) cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
};
template <class Set, class Object, class Attribute, class T> void put(Set set, Object o, Attribute a, const T& value) {
  REQUIRE(set(o, a, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
}
Answer attempt(const Setup& s, char* base) {
  Objects o;
  cublasLtCreate(&o.handle);
  cublasLtMatmulDescCreate(&o.desc, s.compute, s.scale);
  const auto layout = [&](cublasLtMatrixLayout_t* l, cudaDataType t, bool swap, uint64_t rows, uint64_t cols,
                          int64_t ld, int32_t order) {
    cublasLtMatrixLayoutCreate(l, t, swap ? cols : rows, swap ? rows : cols, ld);
    put(cublasLtMatrixLayoutSetAttribute, *l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, s.batch);
    put(cublasLtMatrixLayoutSetAttribute, *l, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, s.mode);
    put(cublasLtMatrixLayoutSetAttribute, *l, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    put(cublasLtMatrixLayoutSetAttribute, *l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, s.d_stride);
  };
  layout(&o.a, s.a_type, s.trans_a, s.m, s.k, s.lda, s.order_a);
  layout(&o.b, s.b_type, s.trans_b, s.k, s.n, s.ldb, CUBLASLT_ORDER_COL);
  layout(&o.c, s.c_type, false, s.m, s.n, s.ldc, s.order_d);
  layout(&o.d, s.d_type, false, s.m, s.n, s.ldd, s.order_d);
  if (s.d_batch >= 0) put(cublasLtMatrixLayoutSetAttribute, o.d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, s.d_batch);
  const auto at = [&](int64_t offset) -> void* { return offset == kNull ? nullptr : base + offset; };
  const auto set = [&](cublasLtMatmulDescAttributes_t a, const auto& v) {
    put(cublasLtMatmulDescSetAttribute, o.desc, a, v);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.trans_a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.trans_b);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, s.epilogue);
  set(CUBLASLT_MATMUL_DESC_POINTER_MODE, s.pointers);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at(s.bias));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at(s.aux));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.aux_ld);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at(s.scale_a));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at(s.scale_b));
  set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, at(s.scale_d));
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, s.mode_a);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, s.mode_b);
  if (s.bias_type >= 0) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, s.bias_type);
  cublasLtMatmulPreferenceCreate(&o.preference);
  put(cublasLtMatmulPreferenceSetAttribute, o.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(1) << 14);
  for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; ++i)
    put(cublasLtMatmulPreferenceSetAttribute, o.preference, cublasLtMatmulPreferenceAttributes_t(i), s.promised);
  cublasLtMatmulHeuristicResult_t best[8];
  int found = 0;
  auto status = cublasLtMatmulAlgoGetHeuristic(o.handle, o.desc, o.a, o.b, o.c, o.d, o.preference, 8, best, &found);
  if (status != CUBLAS_STATUS_SUCCESS) return {status, simt::lt::refusal()};
  REQUIRE(found > 0);
  const auto multiply = [&]<class T>(T alpha, T beta) -> Answer {
    status = cublasLtMatmul(o.handle, o.desc, &alpha, at(s.a), o.a, at(s.b), o.b, &beta, at(s.c), o.c, at(s.d), o.d,
                            &best[0].algo, at(s.workspace), s.workspace_bytes, nullptr);
    return {status, simt::lt::refusal()};
  };
  switch (s.scale) {
    case CUDA_R_32I: return multiply(int32_t(s.alpha), int32_t(s.beta));
    case CUDA_R_64F: return multiply(double(s.alpha), double(s.beta));
    case CUDA_R_16F: return multiply(_Float16(s.alpha), _Float16(s.beta));
    default: return multiply(s.alpha, s.beta);
  }
}

using Change = std::function<void(Setup&)>;
struct Row {
  Change change;
  cublasStatus_t status;
  const char* why;
};
inline void check_rows(const Setup& good, const std::vector<Row>& rows) {
  simt::reset();
  const Arena arena(1 << 20);
  {
    const Answer a = attempt(good, arena.p);
    CAPTURE(a.why);
    REQUIRE(a.status == CUBLAS_STATUS_SUCCESS);
  }
  for (auto& row : rows) {
    CAPTURE(row.why);
    Setup s = good;
    row.change(s);
    const Answer a = attempt(s, arena.p);
    CAPTURE(a.why);
    CHECK(a.status == row.status);
    CHECK(a.why.find(row.why) != std::string::npos);
    CHECK((row.status == CUBLAS_STATUS_SUCCESS) == a.why.empty());
  }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE, kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED,
               kGood = CUBLAS_STATUS_SUCCESS;

inline bool faults(const char* what, const std::function<void(char* arena)>& f) {
  bool all = true;
  for (uint64_t seed : {0, 1, 2}) {
    simt::reset(seed);
    const Arena arena(1 << 20);
    f(arena.p);
    (void)cudaDeviceSynchronize();
    const std::string text = simt::describe();
    CAPTURE(text);
    all &= text.find(what) != std::string::npos && simt::reports().size() == 1;
  }
  simt::reset();
  return all;
}
}  // namespace
