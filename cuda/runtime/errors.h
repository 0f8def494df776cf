// Errors of CUDA as Errors of ours: which op, which kernel may have failed, why there is no device. An error of a
// kernel ends the device for the process; every later use repeats it. For this folder, through runtime.h, and its
// tests.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/cuda/runtime/api.h>

#include <string>

namespace tg::cuda {

// Throws an Error(cuda) "[op] what failed: CUDA's text" unless e is cudaSuccess. An error of a kernel may be that of
// any op launched since the last synchronisation, and the Error names them.
void check(cudaError_t e, std::string_view op, std::string_view what);
// Throws that first error again if a kernel has failed in this process.
void check_alive();

// Kernels of `op` are in the stream; with TG_SYNC=1 it waits for them, so that their errors are those of this op.
void note_launch(std::string_view op, cudaStream_t);
// Nothing launched so far can fail any more.
void note_synchronised();

// Read from the environment (TG_SYNC, off if empty or 0) on first use.
bool sync_after_each();
void set_sync_after_each(bool);  // for tests

// An Error(device) if the NVIDIA driver, by the version of CUDA that it supports (12010 for 12.1), cannot launch all of
// our kernels: the parameters of some take up to 32 764 bytes, and before 12.1 they had 4096.
void check_driver(int version);

// What this machine lacks and the way out, from the error of cudaGetDeviceCount.
std::string why_no_device(cudaError_t);

}  // namespace tg::cuda
