// NVRTC, CUDA's compiler at run time, and the loading of what it makes, for host code: the toolkit's, or the emulator's
// stand-in under the same names (TG_CUDA=EMULATE). NVRTC has a hundred megabytes: the first kernel that is compiled
// loads it, not the start of a process.
#pragma once
#include <tapegrad/cuda/runtime/api.h>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/nvrtc.h>
#define TG_LOADS_KERNELS 1
#else
#include <tapegrad/cuda/runtime/shared_library.h>

#include <nvrtc.h>
#define TG_LOADS_KERNELS (CUDART_VERSION >= 12080)  // older toolkits have no cudaLibraryLoadData

namespace tg::cuda {
SharedLibrary& rtc_library();  // rtc.cpp

// In this namespace the library's functions are objects.
#define TG_RTC_FUNCTION(name) inline constinit const LibraryFunction<decltype(::name), rtc_library> name(#name)
TG_RTC_FUNCTION(nvrtcVersion);
TG_RTC_FUNCTION(nvrtcGetErrorString);
TG_RTC_FUNCTION(nvrtcCreateProgram);
TG_RTC_FUNCTION(nvrtcDestroyProgram);
TG_RTC_FUNCTION(nvrtcCompileProgram);
TG_RTC_FUNCTION(nvrtcGetProgramLogSize);
TG_RTC_FUNCTION(nvrtcGetProgramLog);
TG_RTC_FUNCTION(nvrtcGetCUBINSize);
TG_RTC_FUNCTION(nvrtcGetCUBIN);
#undef TG_RTC_FUNCTION
}  // namespace tg::cuda
#endif
