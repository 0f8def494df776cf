// Which NCCL there is, and what to say where there is none.
#pragma once
#include <tapegrad/cuda/nccl/nccl_api.h>
#include <tapegrad/cuda/runtime/shared_library.h>

#include <string>
#include <string_view>

namespace tg::cuda::nccl {

// NCCL from the library `file`; its Error says where to get it.
SharedLibrary library_of(std::string file);
// An Error if the version of ncclGetVersion() is older than 2.16: the first that was made for CUDA 12, which is what
// this backend needs, and for compute capability 9.0.
void check_version(int version);
// "2.28.9", of that number.
std::string text_of(int version);
// An Error in the name of an op unless r is kSuccess.
void check(Result r, std::string_view op, std::string_view what);

}  // namespace tg::cuda::nccl
