// A kernel's error ends the device's use; every later use repeats it.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/cuda/runtime/api.h>

#include <string>

namespace tg::cuda {

// Throws an Error(cuda) "[op] what failed: CUDA's text" unless e is cudaSuccess; it names ops launched since the last
// synchronisation.
void check(cudaError_t e, std::string_view op, std::string_view what);
// Repeats the first kernel error.
void check_alive();

// With TG_SYNC=1 it synchronises, so that errors name their op.
void note_launch(std::string_view op, cudaStream_t);
void note_synchronized();

// TG_SYNC, off if empty or 0.
bool sync_after_each();
void set_sync_after_each(bool);  // tests set it

// An Error(device) unless the driver's CUDA version (12010 for 12.1) launches our kernels: parameters take up to 32 764
// bytes, before 12.1 at most 4096.
void check_driver(int version);

// An Error(device) if find_kernel() failed: this build is not for the GPU.
void check_kernels(cudaError_t found, std::string_view device, int major, int minor);

// Says what the machine lacks, and the way out.
std::string why_no_device(cudaError_t);

}  // namespace tg::cuda
