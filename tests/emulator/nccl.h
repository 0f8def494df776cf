// The stand-in for NCCL, for tests: its functions are those of cuda/nccl/nccl_api.h. It joins processes of one machine
// through memory that they share.
#pragma once
#include <tapegrad/cuda/nccl/nccl_api.h>

namespace simt {
// What a function, "Send" for ncclSend, answers from now on; kSuccess: all do what they should. CommGetAsyncError gives
// it as the state of the communicator.
void set_nccl(tg::cuda::nccl::Result, const char* function);
void set_nccl_version(int);  // of GetVersion, 22809 unless set
}  // namespace simt
