// What the GPU did while a Profiler runs, from CUPTI. For backend.cpp.
#pragma once
#include <tapegrad/core/profile/profiler_record.h>

#include <memory>

namespace tg::cuda {

// From now on kernels, copies, fills and calls of the CUDA runtime are recorded. An Error says why they cannot be: no
// CUPTI here, a driver that refuses, another tool that uses it.
std::unique_ptr<detail::DeviceProfiler> make_profiler();

}  // namespace tg::cuda
