#include "cublaslt.h"

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
  check_rows(
      int8(CUDA_R_32I),
      {
          {[](Setup& s) { s.trans_a = CUBLAS_OP_N; }, kUnsupported, "int8 needs A transposed and B not (TN)"},
          {[](Setup& s) { s.trans_b = CUBLAS_OP_T; }, kUnsupported, "(TN)"},
          {[](Setup& s) { s.m = 30; }, kUnsupported, "m and k in multiples of 4, they are 30 and 32"},
          {[](Setup& s) { s.k = 31; }, kUnsupported, "m and k in multiples of 4, they are 32 and 31"},
          {[](Setup& s) { s.n = 31; }, kGood, ""},
          {[](Setup& s) { s.lda = 34; }, kUnsupported, "leading dimensions in multiples of 4"},
          {[](Setup& s) { s.n = 65537; }, kUnsupported, "int8 with n = 65537: this version needs n of at most 65536"},
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
          {scales(outer, outer, [](Setup& s) { s.n = 30; }), kUnsupported,
           "OUTER_VEC_32F needs m and n in multiples of 4"},
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
    // Objects destroys nulls too, which are refused and not counted.
  }
  const Arena arena(1 << 20);
  attempt({}, arena.p);
  CHECK(simt::lt::statistics().live == before.live);
  CHECK(simt::lt::statistics().heuristics == before.heuristics + 1);
  CHECK(simt::lt::statistics().products == before.products + 1);
}
