// The emulator's stand-in for cuBLASLt: what it refuses and why, row by row beside what it accepts; its products
// against sums written out; its faults.
#include <doctest/doctest.h>
#include <tapegrad/cuda/simt/cublaslt.h>
#include <tapegrad/cuda/simt/emulator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace {
char* device_memory(const void* from, size_t bytes) {
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

// One product, described in full; a row of the table changes one thing.
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
  // Offsets in the arena.
  int64_t a = 0, b = 1 << 16, c = 1 << 17, d = 1 << 17, bias = kNull, aux = kNull, workspace = 1 << 18;
  int64_t scale_a = kNull, scale_b = kNull, scale_d = kNull;
  size_t workspace_bytes = 1 << 14;
  uint32_t promised = 16;  // alignment that the heuristic was told
};
Setup f32() {
  Setup s;
  s.a_type = s.b_type = s.c_type = s.d_type = CUDA_R_32F;
  return s;
}
Setup int8(cudaDataType d) {
  Setup s;
  s.a_type = s.b_type = CUDA_R_8I;
  s.c_type = s.d_type = d;
  s.compute = d == CUDA_R_32F ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32I;
  s.scale = d == CUDA_R_32I ? CUDA_R_32I : CUDA_R_32F;
  return s;
}
Setup fp8() {
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
  const double wide[] = {s.alpha, s.beta};
  const int32_t whole[] = {int32_t(s.alpha), int32_t(s.beta)};
  const _Float16 half[] = {_Float16(s.alpha), _Float16(s.beta)};
  const bool i32 = s.scale == CUDA_R_32I, f64 = s.scale == CUDA_R_64F, f16 = s.scale == CUDA_R_16F;
  const void* alpha = i32   ? static_cast<const void*>(&whole[0])
                      : f64 ? &wide[0]
                      : f16 ? static_cast<const void*>(&half[0])
                            : &s.alpha;
  const void* beta = i32   ? static_cast<const void*>(&whole[1])
                     : f64 ? &wide[1]
                     : f16 ? static_cast<const void*>(&half[1])
                           : &s.beta;
  status = cublasLtMatmul(o.handle, o.desc, alpha, at(s.a), o.a, at(s.b), o.b, beta, at(s.c), o.c, at(s.d), o.d,
                          &best[0].algo, at(s.workspace), s.workspace_bytes, nullptr);
  return {status, simt::lt::refusal()};
}

using Change = std::function<void(Setup&)>;
struct Row {
  Change change;
  cublasStatus_t status;
  const char* why;
};
void check_rows(const Setup& good, const std::vector<Row>& rows) {
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

// Whether this reports a fault whose text holds `what`, at each schedule.
bool faults(const char* what, const std::function<void(char* arena)>& f) {
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

TEST_CASE("types and their epilogues") {
  const auto types = [](cublasComputeType_t c, cudaDataType scale, cudaDataType in, cudaDataType out, uint32_t epilogue,
                        int32_t bias = -1) {
    return [=](Setup& s) {
      s.compute = c, s.scale = scale, s.a_type = s.b_type = in, s.c_type = s.d_type = out, s.epilogue = epilogue;
      s.bias = 3 << 18, s.bias_type = bias;
    };
  };
  const auto f16 = CUDA_R_16F, bf16 = CUDA_R_16BF, f = CUDA_R_32F, d = CUDA_R_64F, i8 = CUDA_R_8I, i32 = CUDA_R_32I;
  const uint32_t none = CUBLASLT_EPILOGUE_DEFAULT, bias = CUBLASLT_EPILOGUE_BIAS;
  check_rows(
      {}, {
              {types(CUBLAS_COMPUTE_16F, f16, f16, f16, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, bf16, bf16, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, f16, f16, CUBLASLT_EPILOGUE_GELU_BIAS), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, bf16, f, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, f16, f, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, f, f, CUBLASLT_EPILOGUE_RELU_BIAS), kGood, ""},
              {types(CUBLAS_COMPUTE_32F_FAST_TF32, f, f, f, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F_FAST_16F, f, f, f, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32F_FAST_16BF, f, f, f, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_64F, d, d, d, bias), kGood, ""},
              {types(CUBLAS_COMPUTE_32I, i32, i8, i32, none), kGood, ""},
              {types(CUBLAS_COMPUTE_32I, f, i8, i8, none), kGood, ""},
              {types(CUBLAS_COMPUTE_32F, f, i8, f, none), kGood, ""},
              {types(CUBLAS_COMPUTE_32I, i32, i8, i32, bias), kUnsupported, "int8 has no epilogue, this is 4"},
              {types(CUBLAS_COMPUTE_32I, f, i8, i8, bias), kUnsupported, "int8 has no epilogue"},
              {types(CUBLAS_COMPUTE_32F, f, i8, f, CUBLASLT_EPILOGUE_RELU), kUnsupported, "int8 has no epilogue"},
              {types(CUBLAS_COMPUTE_32I, f, i8, bf16, none), kUnsupported,
               "no product of A i8, B i8, C bf16, D bf16 with compute type 72 and scale type f32"},
              {types(CUBLAS_COMPUTE_32F_FAST_TF32, f, bf16, bf16, none), kUnsupported, "no product of A bf16"},
              {types(CUBLAS_COMPUTE_64F, d, f, f, none), kUnsupported, "no product of A f32"},
              {types(CUBLAS_COMPUTE_32F, d, d, d, none), kUnsupported, "no product of A f64"},
              {types(CUBLAS_COMPUTE_32F, f, f, bf16, none), kUnsupported, "no product of A f32, B f32, C bf16, D bf16"},
              {types(CUBLAS_COMPUTE_32F, f, bf16, f16, none), kUnsupported, "no product of A bf16"},
              {types(CUBLAS_COMPUTE_16F, f, f16, f16, none), kUnsupported, "compute type 64 and scale type f32"},
              {[&](Setup& s) { s.b_type = f16; }, kUnsupported, "A bf16, B f16"},
              {types(CUBLAS_COMPUTE_32F, f, bf16, bf16, bias, f), kUnsupported, "bias of f32: it must be bf16"},
          });
}
TEST_CASE("epilogues: what excludes what, and what they need") {
  const auto epilogue = [](uint32_t e, Change more = nullptr) {
    return [=](Setup& s) {
      s.epilogue = e, s.bias = 3 << 18, s.aux = 7 << 17, s.aux_ld = 32;
      if (more) more(s);
    };
  };
  const auto rows = [](Setup& s) { s.order_d = CUBLASLT_ORDER_ROW; };
  check_rows({}, {
                     {epilogue(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), kGood, ""},
                     {epilogue(CUBLASLT_EPILOGUE_DGELU_BGRAD), kGood, ""},
                     {epilogue(CUBLASLT_EPILOGUE_DEFAULT, rows), kGood, ""},
                     {epilogue(CUBLASLT_EPILOGUE_BIAS, rows), kUnsupported, "need D in column order"},
                     {epilogue(CUBLASLT_EPILOGUE_GELU_AUX, rows), kUnsupported, "need D in column order"},
                     {epilogue(CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_DGELU), kInvalid, "epilogue 196: not one of"},
                     {epilogue(CUBLASLT_EPILOGUE_GELU | CUBLASLT_EPILOGUE_DRELU), kInvalid, "not one of"},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BIAS), kInvalid, "not one of"},
                     {epilogue(0), kInvalid, "epilogue 0: not one of"},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADA), kUnsupported, "BGRADA needs A not transposed"},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADA, [](Setup& s) { s.trans_a = 0; }), kGood, ""},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADB), kUnsupported, "BGRADB needs B transposed"},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADB, [](Setup& s) { s.trans_b = 1; }), kGood, ""},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADB, [&](Setup& s) { s.trans_b = 1, rows(s); }), kUnsupported,
                      "BGRADA and BGRADB need D in column order"},
                     {epilogue(CUBLASLT_EPILOGUE_BGRADB, [](Setup& s) { s.a_type = s.b_type = CUDA_R_8I; }),
                      kUnsupported, "need f16, bf16, f32 or f64"},
                     {epilogue(CUBLASLT_EPILOGUE_GELU_AUX, [](Setup& s) { s.aux_ld = 36; }), kInvalid,
                      "leading dimension 36 of GELU's input: it must be a multiple of 8 and at least m"},
                     {epilogue(CUBLASLT_EPILOGUE_GELU_AUX, [](Setup& s) { s.aux_ld = 24; }), kInvalid, "at least m"},
                     {epilogue(CUBLASLT_EPILOGUE_RELU_AUX, [](Setup& s) { s.aux_ld = 64; }), kInvalid,
                      "leading dimension 64 of RELU's bit mask: it must be a multiple of 128"},
                     {epilogue(CUBLASLT_EPILOGUE_GELU_AUX, [](Setup& s) { s.aux = kNull; }), kInvalid,
                      "the epilogue's auxiliary pointer is not set"},
                     {epilogue(CUBLASLT_EPILOGUE_BIAS, [](Setup& s) { s.bias = kNull; }), kInvalid,
                      "the epilogue's bias pointer is not set"},
                     {epilogue(CUBLASLT_EPILOGUE_BIAS, [](Setup& s) { s.mode = CUBLASLT_BATCH_MODE_POINTER_ARRAY; }),
                      kUnsupported, "a batch by pointer arrays has no epilogue"},
                 });
}
TEST_CASE("layouts, pointers, alignment and workspace") {
  check_rows(f32(),
             {
                 {[](Setup& s) { s.m = 31, s.lda = 33, s.ldc = s.ldd = 35; }, kGood, ""},
                 {[](Setup& s) { s.lda = 31; }, kInvalid, "leading dimension 31 of A is below 32"},
                 {[](Setup& s) { s.ldb = -32; }, kInvalid, "leading dimension -32 of B is below 32"},
                 {[](Setup& s) { s.ldd = 16; }, kInvalid, "leading dimension 16 of D is below 32"},
                 {[](Setup& s) { s.order_a = CUBLASLT_ORDER_ROW, s.lda = 8; }, kInvalid, "of A is below 32"},
                 {[](Setup& s) { s.order_a = CUBLASLT_ORDER_COL32; }, kUnsupported, "order 2 of A is not for compute"},
                 {[](Setup& s) { s.n = 0; }, kInvalid, "has size 0"},
                 {[](Setup& s) { s.k = 0; }, kInvalid, "A has size 0"},
                 {[](Setup& s) { s.n = uint64_t(1) << 31; }, kUnsupported, "a size of B is above 2^31 - 1"},
                 {[](Setup& s) { s.batch = 2, s.d_batch = 3; }, kInvalid, "batch count of A is 2, of D 3"},
                 {[](Setup& s) { s.batch = 2; }, kGood, ""},
                 {[](Setup& s) { s.batch = 2, s.d_stride = 100; }, kInvalid, "the matrices of D overlap"},
                 {[](Setup& s) { s.mode = CUBLASLT_BATCH_MODE_POINTER_ARRAY; }, kUnsupported, "pointer arrays"},
                 {[](Setup& s) { s.a = 16; }, kGood, ""},
                 {[](Setup& s) { s.a = 4; }, kInvalid, "chosen for operands aligned to 16 bytes"},
                 {[](Setup& s) { s.a = 4, s.promised = 4; }, kGood, ""},
                 {[](Setup& s) { s.b += 2, s.promised = 2; }, kInvalid, "is not aligned to 4 bytes"},
                 {[](Setup& s) { s.workspace += 128; }, kInvalid, "is not aligned to 256 bytes"},
                 {[](Setup& s) { s.workspace = kNull; }, kInvalid, "the algorithm needs 4096 bytes of workspace"},
                 {[](Setup& s) { s.workspace_bytes = 64; }, kInvalid, "bytes of workspace, it has 64"},
                 {[](Setup& s) { s.a = kNull; }, kInvalid, "A, B and D must be given"},
                 {[](Setup& s) { s.c = kNull; }, kGood, ""},
                 {[](Setup& s) { s.c = kNull, s.beta = 1; }, kInvalid, "C must be given unless beta is 0"},
                 {[](Setup& s) { s.beta = 1; }, kGood, ""},
                 {[](Setup& s) { s.ldd = 36; }, kInvalid, "C is D, with another layout"},
                 {[](Setup& s) { s.scale_a = 3 << 18; }, kUnsupported, "scale pointers are for fp8, A is f32"},
             });
}
TEST_CASE("rules of int8") {
  check_rows(int8(CUDA_R_32I),
             {
                 {[](Setup& s) { s.trans_a = CUBLAS_OP_N; }, kUnsupported, "int8 needs A transposed and B not (TN)"},
                 {[](Setup& s) { s.trans_b = CUBLAS_OP_T; }, kUnsupported, "(TN)"},
                 {[](Setup& s) { s.m = 30; }, kUnsupported, "m and k in multiples of 4, they are 30 and 32"},
                 {[](Setup& s) { s.k = 31; }, kUnsupported, "m and k in multiples of 4, they are 32 and 31"},
                 {[](Setup& s) { s.n = 31; }, kGood, ""},
                 {[](Setup& s) { s.lda = 34; }, kUnsupported, "leading dimensions in multiples of 4"},
                 {[](Setup& s) { s.n = 65537; }, kUnsupported, "int8 with n = 65537: above 65536"},
                 {[](Setup& s) { s.a = 2, s.promised = 1; }, kInvalid, "is not aligned to 4 bytes"},
                 {[](Setup& s) { s.alpha = 2; }, kUnsupported, "needs alpha and beta of 0 or 1"},
                 {[](Setup& s) { s.beta = 1; }, kGood, ""},
                 {[](Setup& s) { s.scale_b = 3 << 18; }, kUnsupported, "int8 has no scale pointers"},
                 {[](Setup& s) { s.pointers = CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO; }, kUnsupported,
                  "int8 has the pointer modes HOST, DEVICE and"},
             });
  check_rows(int8(CUDA_R_32F), {{[](Setup& s) { s.alpha = 2; }, kGood, ""},
                                {[](Setup& s) { s.pointers = CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST; },
                                 kUnsupported, "int8 with an f32 result takes scalars only"}});
}
TEST_CASE("rules of fp8") {
  const auto scales = [](int32_t a, int32_t b, Change more = nullptr) {
    return [=](Setup& s) {
      s.mode_a = a, s.mode_b = b, s.scale_a = 3 << 18, s.scale_b = 7 << 17;
      if (more) more(s);
    };
  };
  const auto one = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
             vec = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, block = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  const auto to_fp8 = [](Setup& s) { s.d_type = CUDA_R_8F_E4M3, s.d = 5 << 16; };
  check_rows(
      fp8(),
      {
          {[](Setup& s) { s.b_type = CUDA_R_8F_E5M2; }, kGood, ""},
          {[](Setup& s) { s.a_type = CUDA_R_8F_E5M2; }, kGood, ""},
          {[](Setup& s) { s.a_type = s.b_type = CUDA_R_8F_E5M2; }, kUnsupported,
           "e5m2 x e5m2: one operand must be e4m3"},
          {[](Setup& s) { s.b_type = CUDA_R_16BF; }, kUnsupported, "fp8 only with fp8: A is e4m3, B is bf16"},
          {[](Setup& s) { s.compute = CUBLAS_COMPUTE_16F; }, kUnsupported, "fp8 needs CUBLAS_COMPUTE_32F"},
          {[](Setup& s) { s.c_type = s.d_type = CUDA_R_32F; }, kGood, ""},
          {[](Setup& s) { s.c_type = s.d_type = CUDA_R_16F; }, kGood, ""},
          {to_fp8, kGood, ""},
          {[&](Setup& s) { to_fp8(s), s.c_type = CUDA_R_32F; }, kUnsupported, "fp8 has no D of e4m3 with C of f32"},
          {[&](Setup& s) { to_fp8(s), s.d_type = CUDA_R_8F_E5M2; }, kUnsupported, "fp8 has no D of e5m2"},
          {[&](Setup& s) { to_fp8(s), s.d_type = s.b_type = CUDA_R_8F_E5M2; }, kGood, ""},
          {[](Setup& s) { s.trans_a = 0; }, kUnsupported, "fp8 needs A transposed and B not (TN)"},
          {[](Setup& s) { s.m = 24; }, kUnsupported, "m and k in multiples of 16, they are 24 and 32"},
          {[](Setup& s) { s.k = 24; }, kUnsupported, "m and k in multiples of 16"},
          {[](Setup& s) { s.n = 31; }, kGood, ""},
          {[](Setup& s) { s.lda = 40; }, kUnsupported, "leading dimensions in multiples of 16 bytes"},
          {[](Setup& s) { s.b += 8, s.promised = 8; }, kInvalid, "is not aligned to 16 bytes"},
          {[](Setup& s) { s.beta = 1; }, kUnsupported, "fp8 with beta"},
          {[](Setup& s) { s.epilogue = CUBLASLT_EPILOGUE_BIAS, s.bias = 3 << 18; }, kGood, ""},
          {[](Setup& s) {
             s.c_type = s.d_type = CUDA_R_16F, s.epilogue = CUBLASLT_EPILOGUE_BIAS, s.bias = 3 << 18;
             s.bias_type = CUDA_R_16BF;
           },
           kUnsupported, "bias of bf16: it must be f16"},
          {scales(one, one), kGood, ""},
          {scales(one, one, [](Setup& s) { s.scale_b += 4; }), kInvalid, "are not aligned to 16 bytes"},
          {scales(outer, outer), kGood, ""},
          {scales(outer, one), kUnsupported, "OUTER_VEC_32F must be the scale mode of both operands"},
          {scales(outer, outer, [](Setup& s) { s.scale_a = kNull; }), kInvalid, "scales of A and B are not set"},
          {scales(vec, vec), kGood, ""},
          {scales(vec, block), kGood, ""},
          {scales(block, vec), kGood, ""},
          {scales(block, block), kUnsupported, "one must be VEC128_32F"},
          {scales(vec, one), kUnsupported, "scales of 128 elements must be those of both operands"},
          {scales(vec, vec, [](Setup& s) { s.n = 30; }), kUnsupported, "m and n in multiples of 4"},
          {scales(vec, vec, [](Setup& s) { s.epilogue = CUBLASLT_EPILOGUE_GELU; }), kUnsupported,
           "have the epilogues DEFAULT, BIAS and DGELU"},
          {scales(outer, outer, to_fp8), kUnsupported, "needs scalar scales of A and B"},
          {scales(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, one), kUnsupported, "not for compute capability 9.0"},
          {[&](Setup& s) { to_fp8(s), s.scale_d = 3 << 18; }, kGood, ""},
          {[](Setup& s) { s.scale_d = 3 << 18; }, kUnsupported, "only D of fp8 has a scale"},
      });
}
TEST_CASE("attributes have a size, algorithms a problem, and objects an end") {
  const auto before = simt::lt::statistics();
  {
    Objects o{};
    REQUIRE(cublasLtMatmulDescCreate(&o.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == kGood);
    const int64_t wide = 1;
    CHECK(cublasLtMatmulDescSetAttribute(o.desc, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide) == kInvalid);
    CHECK(simt::lt::refusal() == "an attribute of 4 bytes, given 8");
    CHECK(std::string(cublasLtGetStatusString(kInvalid)).find("given 8") != std::string::npos);
    CHECK(std::string(cublasLtGetStatusName(kInvalid)) == "CUBLAS_STATUS_INVALID_VALUE");
    cublasLtMatmulDescDestroy(o.desc);
    o.desc = nullptr;
    // What ~Objects destroys besides is null, which is refused and not counted.
  }
  const Arena arena(1 << 20);
  attempt({}, arena.p);
  CHECK(simt::lt::statistics().live == before.live);
  CHECK(simt::lt::statistics().heuristics == before.heuristics + 1);
  CHECK(simt::lt::statistics().products == before.products + 1);
}

namespace {
std::vector<float> ramp(size_t n, int modulus, float scale) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = float(int(i * 7 % size_t(modulus)) - modulus / 2) * scale;
  return v;
}
// D (m x n, columns) of A (k x m) transposed times B (k x n), both in columns.
std::vector<double> expected(const std::vector<float>& a, const std::vector<float>& b, size_t m, size_t n, size_t k) {
  std::vector<double> d(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t s = 0; s < k; ++s) d[i + j * m] += double(a[s + i * k]) * b[s + j * k];
  return d;
}
template <class T> void upload(char* to, const std::vector<float>& v) {
  std::vector<T> x(v.begin(), v.end());
  REQUIRE(cudaMemcpy(to, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
}
template <class T> std::vector<T> download(const char* from, size_t n) {
  std::vector<T> x(n);
  REQUIRE(cudaMemcpy(x.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
  return x;
}
}  // namespace

TEST_CASE("values of products: int8, fp8 with scales, epilogues") {
  const Arena arena(1 << 20);
  const auto a = ramp(32 * 32, 13, 1), b = ramp(32 * 32, 11, 1);
  const auto sums = expected(a, b, 32, 32, 32);
  SUBCASE("int8 to int32, and to int8 scaled and saturated") {
    Setup s = int8(CUDA_R_32I);
    upload<int8_t>(arena.p + s.a, a);
    upload<int8_t>(arena.p + s.b, b);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<int32_t>(arena.p + s.d, 1024);
    for (size_t i = 0; i < d.size(); ++i) CHECK(d[i] == int32_t(sums[i]));
    s = int8(CUDA_R_8I);
    s.alpha = 1.5f;
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto e = download<int8_t>(arena.p + s.d, 1024);
    for (size_t i = 0; i < e.size(); ++i)
      CHECK(e[i] == int8_t(std::clamp(std::nearbyint(1.5 * sums[i]), -128.0, 127.0)));
  }
  SUBCASE("fp8: 1.5 and -0.25 in both formats, scaled by row and column") {
    std::vector<uint8_t> x(1024, 0x3c), y(1024, 0xb4);  // 1.5 in e4m3; -0.25 in e5m2
    Setup s = fp8();
    s.b_type = CUDA_R_8F_E5M2, s.mode_a = s.mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    s.scale_a = 3 << 18, s.scale_b = 7 << 17, s.c_type = s.d_type = CUDA_R_32F;
    REQUIRE(cudaMemcpy(arena.p + s.a, x.data(), 1024, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaMemcpy(arena.p + s.b, y.data(), 1024, cudaMemcpyHostToDevice) == cudaSuccess);
    std::vector<float> rows(32), columns(32);
    for (int i = 0; i < 32; ++i) rows[size_t(i)] = float(i + 1), columns[size_t(i)] = 1.0f / float(i + 1);
    upload<float>(arena.p + s.scale_a, rows);
    upload<float>(arena.p + s.scale_b, columns);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<float>(arena.p + s.d, 1024);
    for (size_t j = 0; j < 32; ++j)
      for (size_t i = 0; i < 32; ++i) CHECK(d[i + 32 * j] == doctest::Approx(-12.0 * rows[i] * columns[j]));
    s = fp8();  // and rounded to e4m3, whose least unit is 2^-9 and whose largest number is 448
    s.b_type = CUDA_R_8F_E5M2, s.d_type = CUDA_R_8F_E4M3, s.d = 5 << 16;
    const auto rounded = [&](float alpha) {  // -12 alpha
      s.alpha = alpha;
      REQUIRE(attempt(s, arena.p).status == kGood);
      return download<uint8_t>(arena.p + s.d, 1)[0];
    };
    CHECK(rounded(1) == 0xd4);             // 1.5 * 2^3
    CHECK(rounded(1000) == 0xfe);          // stays at the largest
    CHECK(rounded(0.0625f) == 0xb4);       // 0.75 = 1.5 * 2^-1
    CHECK(rounded(1.0f / 8192) == 0x81);   // 0.75 units
    CHECK(rounded(1.0f / 16384) == 0x80);  // 0.375
    CHECK(rounded(0x1p-12f) == 0x82);      // 1.5: to even
    CHECK(rounded(5 * 0x1p-12f) == 0x88);  // 7.5: to even, which is the least normal number
  }
  SUBCASE("GELU with bias and its input kept, then its slope and the sums of rows") {
    Setup s = f32();
    s.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, s.bias = 3 << 18, s.aux = 7 << 17, s.aux_ld = 32;
    s.alpha = 0.01f;
    const auto bias = ramp(32, 5, 0.5f);
    upload<float>(arena.p + s.a, a);
    upload<float>(arena.p + s.b, b);
    upload<float>(arena.p + s.bias, bias);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<float>(arena.p + s.d, 1024), aux = download<float>(arena.p + s.aux, 1024);
    const auto gelu = [](double x) {
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    };
    for (size_t i = 0; i < 1024; ++i) {
      const double x = 0.01 * sums[i] + bias[i % 32];
      CHECK(aux[i] == doctest::Approx(x).epsilon(1e-5));
      CHECK(d[i] == doctest::Approx(gelu(x)).epsilon(1e-4));
    }
    s.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto g = download<float>(arena.p + s.d, 1024), row_sums = download<float>(arena.p + s.bias, 32);
    std::vector<double> total(32);
    for (size_t i = 0; i < 1024; ++i) {
      const double x = aux[i], h = 1e-4, slope = (gelu(x + h) - gelu(x - h)) / (2 * h);
      CHECK(g[i] == doctest::Approx(0.01 * sums[i] * slope).epsilon(1e-3));
      total[i % 32] += g[i];
    }
    for (size_t i = 0; i < 32; ++i) CHECK(row_sums[i] == doctest::Approx(total[i]).epsilon(1e-4));
  }
}

TEST_CASE("faults of a product are reported") {
  CHECK(faults("cublasLtMatmul: read of 2048 bytes of device memory, byte 0 unwritten", [](char* arena) {
    void* fresh = nullptr;
    (void)cudaMalloc(&fresh, 1 << 12);
    Setup s;
    s.a = static_cast<char*>(fresh) - arena;
    attempt(s, arena);
  }));
  CHECK(faults("cublasLtMatmul: write of 2048 bytes of device memory, byte 1024 ", [](char* arena) {
    Setup s;
    s.c = s.d = (1 << 20) - 1024;
    attempt(s, arena);
  }));
  CHECK(faults("which is no device memory", [](char* arena) {
    alignas(256) static char host[4096];
    Setup s;
    s.b = host - arena;
    attempt(s, arena);
  }));
  CHECK(faults("cublasLtMatmul writes D over an operand", [](char* arena) {
    Setup s;
    s.c = s.d = 1024;
    attempt(s, arena);
  }));
  CHECK(faults("an operation of another stream", [](char* arena) {
    cudaStream_t other = nullptr;
    (void)cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    (void)cudaMemsetAsync(arena, 0, 4096, other);
    attempt({}, arena);
  }));
}
