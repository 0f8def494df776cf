// NCCL without nccl.h: the first call loads libnccl.so.2, or the emulator's functions. A test compares these prototypes
// with nccl.h. Buffers move as bytes: our kernels sum.
#pragma once
#include <cstddef>
#ifndef TG_CUDA_EMULATED
#include <tapegrad/cuda/runtime/shared_library.h>
#endif

struct ncclComm;     // defined by NCCL
struct CUstream_st;  // *cudaStream_t

namespace tg::cuda::nccl {

struct UniqueId {
  char bytes[128];
};
using Comm = ::ncclComm*;
using CudaStream = ::CUstream_st*;
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum DataType : int { kInt8 = 0 };

#define TG_NCCL_FUNCTIONS(F)                                                                           \
  F(Result, GetVersion, int*)                                                                          \
  F(Result, GetUniqueId, UniqueId*)                                                                    \
  F(Result, CommInitRank, Comm*, int ranks, UniqueId, int rank)                                        \
  F(Result, CommAbort, Comm)                                                                           \
  F(Result, CommGetAsyncError, Comm, Result*)                                                          \
  F(const char*, GetErrorString, Result)                                                               \
  F(Result, Send, const void* from, size_t count, DataType, int to_rank, Comm, CudaStream)             \
  F(Result, Recv, void* to, size_t count, DataType, int of_rank, Comm, CudaStream)                     \
  F(Result, AllGather, const void* from, void* to, size_t count_of_each, DataType, Comm, CudaStream)   \
  F(Result, Broadcast, const void* from, void* to, size_t count, DataType, int root, Comm, CudaStream) \
  F(Result, GroupStart)                                                                                \
  F(Result, GroupEnd)

#ifdef TG_CUDA_EMULATED
#define TG_NCCL_FUNCTION(R, name, ...) R name(__VA_ARGS__);
#else
SharedLibrary& library();  // library.cpp
#define TG_NCCL_FUNCTION(R, name, ...) \
  inline constinit const LibraryFunction<R(__VA_ARGS__), library> name("nccl" #name);
#endif
TG_NCCL_FUNCTIONS(TG_NCCL_FUNCTION)
#undef TG_NCCL_FUNCTION

}  // namespace tg::cuda::nccl
