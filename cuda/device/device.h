// nvcc gets CUDA, a host compiler gets the emulator (tests/emulator/emulator.h). Rules for kernels that hold for both:
// - kernels and their device functions are in an anonymous namespace of their .cu file, or are __forceinline__;
// - shared memory is `__shared__ __align__(16) T x[N]`, or dynamic_shared<T>(); device code reads no mutable globals;
// - memory moves by assignment, vectors by vec.h, never by memcpy; PTX only through ptx.h and hopper.h;
// - a shuffle's mask names exactly the participating lanes; shuffles order no memory, __syncwarp does;
// - all threads of a block reach the same __syncthreads line, and none returns before it;
// - cp.async, TMA and wgmma are waited for before their thread or block ends;
// - a block waits only for one that drew an earlier ticket from an atomic: blocks may run one by one.
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include <tapegrad/emulator/language.h>
#endif
#include <tapegrad/cuda/device/ptx.h>
