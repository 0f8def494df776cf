// A kernel's error ends the device's use in this process; every later use repeats it.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/cuda/runtime/api.h>

#include <string>

namespace tg::cuda {

// Throws an Error(cuda) "[op] what failed: CUDA's text" unless e is cudaSuccess. A kernel's error may come from any op
// launched since the last synchronisation; the Error names them.
void check(cudaError_t e, std::string_view op, std::string_view what);
// Throws the first kernel error again, if any.
void check_alive();

// Notes a launch of `op`. With TG_SYNC=1 it synchronises, so that errors name their op.
void note_launch(std::string_view op, cudaStream_t);
void note_synchronised();

// TG_SYNC (off if empty or 0), read once.
bool sync_after_each();
void set_sync_after_each(bool);  // for tests

// An Error(device) if the NVIDIA driver's CUDA version (12010 for 12.1) cannot launch our kernels: parameters take up
// to 32 764 bytes, before 12.1 at most 4096.
void check_driver(int version);

// An Error(device) if find_kernel() found none: this build is not for the GPU.
void check_kernels(cudaError_t found, std::string_view device, int major, int minor);

// Explains an error of cudaGetDeviceCount: what the machine lacks, and the way out.
std::string why_no_device(cudaError_t);

}  // namespace tg::cuda
