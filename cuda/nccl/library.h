// Finds and checks NCCL.
#pragma once
#include <tapegrad/cuda/nccl/nccl_api.h>
#include <tapegrad/cuda/runtime/shared_library.h>

#include <string>
#include <string_view>

namespace tg::cuda::nccl {

SharedLibrary library_of(std::string file);
// An Error below 2.16, the first for CUDA 12 and compute capability 9.0.
void check_version(int version);
std::string text_of(int version);
// An Error unless r is kSuccess.
void check(Result r, std::string_view op, std::string_view what);

}  // namespace tg::cuda::nccl
