// The toolkit's NVRTC and kernel loading, or the emulator's under the same names; loaded (a hundred megabytes) by the
// first compilation.
#pragma once
#include <tapegrad/cuda/runtime/api.h>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/nvrtc.h>
#define TG_LOADS_KERNELS 1
#else
#include <tapegrad/cuda/runtime/shared_library.h>

#include <nvrtc.h>
#define TG_LOADS_KERNELS (CUDART_VERSION >= 12080)  // 12.8 added cudaLibraryLoadData

namespace tg::cuda {
SharedLibrary& rtc_library();  // rtc.cpp

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
