// The toolkit's cuBLASLt, or the emulator's under the same names; loaded (half a gigabyte) by the first call.
#pragma once
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cublaslt.h>
#else
#include <tapegrad/cuda/runtime/shared_library.h>

#include <cublasLt.h>

namespace tg::cuda {
SharedLibrary& lt_library();  // gemm_plan.cpp

#define TG_LT_FUNCTION(name) inline constinit const LibraryFunction<decltype(::name), lt_library> name(#name)
TG_LT_FUNCTION(cublasLtCreate);
TG_LT_FUNCTION(cublasLtDestroy);
TG_LT_FUNCTION(cublasLtGetStatusName);
TG_LT_FUNCTION(cublasLtGetStatusString);
TG_LT_FUNCTION(cublasLtGetVersion);
TG_LT_FUNCTION(cublasLtMatmul);
TG_LT_FUNCTION(cublasLtMatmulAlgoCheck);
TG_LT_FUNCTION(cublasLtMatmulAlgoGetHeuristic);
TG_LT_FUNCTION(cublasLtMatmulDescCreate);
TG_LT_FUNCTION(cublasLtMatmulDescDestroy);
TG_LT_FUNCTION(cublasLtMatmulDescSetAttribute);
TG_LT_FUNCTION(cublasLtMatmulPreferenceCreate);
TG_LT_FUNCTION(cublasLtMatmulPreferenceDestroy);
TG_LT_FUNCTION(cublasLtMatmulPreferenceSetAttribute);
TG_LT_FUNCTION(cublasLtMatrixLayoutCreate);
TG_LT_FUNCTION(cublasLtMatrixLayoutDestroy);
TG_LT_FUNCTION(cublasLtMatrixLayoutSetAttribute);
#undef TG_LT_FUNCTION
}  // namespace tg::cuda
#endif
