// cuBLASLt for host code: the toolkit's, or the emulator's stand-in under the same names (TG_CUDA=EMULATE).
#pragma once
#ifdef TG_CUDA_EMULATED
#include <tapegrad/cuda/simt/cublaslt.h>
#else
#include <cublasLt.h>
#endif
