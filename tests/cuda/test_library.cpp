// Search, errors, and (TG_CUDA=ON, no GPU needed) cuBLASLt.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#include <tapegrad/cuda/gemm/gemm_plan.h>
#include <tapegrad/cuda/runtime/shared_library.h>

#include "support/helpers.h"

using namespace tg;
using namespace tg::cuda;

TEST_CASE("a library is loaded when a function of it is asked for, once") {
  SharedLibrary libc("libc.so.6", "/nowhere", "It comes with the system");
  void* f = libc.function("abs");
  REQUIRE(f != nullptr);
  CHECK(reinterpret_cast<int (*)(int)>(f)(-3) == 3);
  CHECK(libc.function("abs") == f);
}
TEST_CASE("a library that is not there: what was looked for, and how to get it") {
  SharedLibrary none("libtapegrad_none.so.7", "/nowhere", "Products need it. Install\n  apt install none-7");
  const std::string e = error_of([&] { none.function("f"); });
  CHECK_HAS(e, "[cuda] libtapegrad_none.so.7 cannot be loaded: ", "/nowhere/libtapegrad_none.so.7", "No such file",
            "Products need it. Install\n  apt install none-7, or add the folder that has it to LD_LIBRARY_PATH.");
  CHECK(error_of([&] { none.function("f"); }) == e);
}
TEST_CASE("a library without a function: it is of another version") {
  SharedLibrary libc("libc.so.6", "/nowhere", "Install it anew");
  CHECK_SAYS(libc.function("tapegrad_none"), "[cuda] libc.so.6 has no function tapegrad_none: ",
             "Its version differs from the one that this program was built for. Install it anew.");
}
TEST_CASE("cuBLASLt accepts every descriptor, layout and preference of a product; only the next call needs a GPU") {
  const float bias = 0;
  const auto high = MatmulPrecision::high, medium = MatmulPrecision::medium, highest = MatmulPrecision::highest;
  for (const auto& [dtype, products] : {std::pair(DType::f64, highest),
                                        {DType::f32, highest},
                                        {DType::f32, high},
                                        {DType::f32, medium},
                                        {DType::bf16, highest},
                                        {DType::i8, highest}})
    for (int form = 0; form < 16; ++form)
      for (const uint8_t alignment : {0, 2, 4, 8}) {
        GemmKey k;
        k.m = 48, k.n = 32, k.k = 64, k.lda = k.ldb = k.ldd = 64, k.dtype = dtype, k.products = products;
        k.trans_a = form & 1, k.trans_b = form >> 1 & 1, k.bias = form >> 2 & 1, k.batch = form & 8 ? 3 : 1;
        k.stride_a = k.stride_b = k.stride_d = 4096;
        k.align_a = k.align_b = k.align_d = k.align_bias = alignment;
        CHECK_SAYS(GemmPlan(nullptr, k, &bias, "test"), "[test] cuBLASLt: choosing an algorithm for " + describe(k));
      }
#if !defined(TG_CUDA_EMULATED) && CUBLAS_VERSION >= 120900
  if (has_device(Device::cuda())) return;
  const Context c(Device::cuda(), "test");
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    CHECK_SAYS(gemm_fp8(c, {.m = 16,
                            .n = 32,
                            .k = 64,
                            .of_x = Fp8Format::e4m3,
                            .of_weight = Fp8Format::e5m2,
                            .scale_x = &bias,
                            .scale_weight = &bias,
                            .dtype = t}),
               "[test] cuBLASLt: starting the library failed");
#endif
}
#ifndef TG_CUDA_EMULATED
TEST_CASE("cuBLASLt is found, is of the version that this program was built for, and has what is called") {
  CHECK(tg::cuda::cublasLtGetVersion() / 10000 == CUBLAS_VER_MAJOR);
  for (const char* name :
       {"cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul", "cublasLtMatmulAlgoCheck",
        "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy",
        "cublasLtMatmulDescSetAttribute", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy",
        "cublasLtMatrixLayoutSetAttribute"})
    CHECK(lt_library().function(name) != nullptr);
  CHECK(std::string(tg::cuda::cublasLtGetStatusName(CUBLAS_STATUS_SUCCESS)) == "CUBLAS_STATUS_SUCCESS");
  CHECK(!std::string(tg::cuda::cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED)).empty());
}
#endif
