// For nvcc, and for host compilers with the emulator (tests/emulator/emulator.h). Rules for kernels:
// - kernels and device functions: in an anonymous namespace of their .cu file, or __forceinline__;
// - shared memory: `__shared__ __align__(16) T x[N]`, or dynamic_shared<T>(); no mutable globals;
// - assignment or vec.h, never memcpy; PTX only through ptx.h and hopper.h;
// - a shuffle's mask names its participants exactly; shuffles order no memory, __syncwarp does;
// - all threads of a block reach the same __syncthreads line; none returns early;
// - cp.async, TMA and wgmma are complete before their thread or block ends;
// - a block depends only on blocks with earlier atomic tickets: blocks may run one by one.
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include <tapegrad/emulator/language.h>
#endif
#include <tapegrad/cuda/device/ptx.h>
