// The toolkit's CUDA runtime, or the emulator's subset under the same names. Kernels include device.h.
#pragma once
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/runtime.h>
#else
#include <cuda_runtime.h>
#endif
