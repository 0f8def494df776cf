// The CUDA runtime: the toolkit's, or the emulator's subset under the same names (TG_CUDA=EMULATE). Kernel sources
// include device.h instead.
#pragma once
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/runtime.h>
#else
#include <cuda_runtime.h>
#endif
