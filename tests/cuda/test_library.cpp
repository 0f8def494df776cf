// Libraries loaded at first use: search, errors, and (TG_CUDA=ON, no GPU needed) cuBLASLt.
#include <tapegrad/cuda/gemm/lt_api.h>
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
  CHECK(has(e, "[cuda] libtapegrad_none.so.7 cannot be loaded: "));
  CHECK(has(e, "/nowhere/libtapegrad_none.so.7"));
  CHECK(has(e, "No such file"));
  CHECK(has(e, "Products need it. Install\n  apt install none-7, or add the folder that has it to LD_LIBRARY_PATH."));
  CHECK(error_of([&] { none.function("f"); }) == e);
}
TEST_CASE("a library without a function: it is of another version") {
  SharedLibrary libc("libc.so.6", "/nowhere", "Install it anew");
  const std::string e = error_of([&] { libc.function("tapegrad_none"); });
  CHECK(has(e, "[cuda] libc.so.6 has no function tapegrad_none: "));
  CHECK(has(e, "Its version differs from the one that this program was built for. Install it anew."));
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
