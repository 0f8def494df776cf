// GPU activity during a Profiler, from CUPTI.
#pragma once
#include <tapegrad/core/profile/profiler_record.h>

#include <memory>

namespace tg::cuda {

// An Error says why nothing is recorded: no CUPTI, a driver that refuses, another tool that uses it.
std::unique_ptr<detail::DeviceProfiler> make_profiler();

}  // namespace tg::cuda
