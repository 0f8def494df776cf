// The one header of CUDA that a kernel source includes. nvcc sees CUDA; a host compiler sees the emulator, which gives
// the same names and checks every access (tests/emulator/emulator.h). Rules for kernels, which keep both true:
// - kernels and their device functions live in an anonymous namespace of their .cu file, or are __forceinline__;
// - shared memory is `__shared__ __align__(16) T x[N]`, or dynamic_shared<T>(); device code reads no mutable globals;
// - memory moves by assignment, vectors by vec.h, never by memcpy; PTX only through ptx.h and hopper.h;
// - a mask of a shuffle names exactly the lanes that take part; shuffles order no memory, __syncwarp does;
// - all threads of a block meet at the same __syncthreads line, and none returns before it;
// - what cp.async, TMA or wgmma started is waited for before its thread or block ends;
// - a block waits for another only if that one drew an earlier ticket from an atomic: blocks may run one by one.
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include <tapegrad/emulator/language.h>
#endif
#include <tapegrad/cuda/device/ptx.h>
