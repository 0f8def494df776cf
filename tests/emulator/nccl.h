// Connects processes of one machine.
#pragma once
#include <tapegrad/cuda/nccl/nccl_api.h>

namespace simt {
// Sets the result of `function` ("Send" for ncclSend); kSuccess restores all. CommGetAsyncError returns it too.
void set_nccl(tg::cuda::nccl::Result, const char* function);
void set_nccl_version(int);  // result of GetVersion, default 22809
}  // namespace simt
