/// @file
/// dry_run(): runs a program without memory and kernels, to measure how much memory it takes. It counts the allocations
/// of the real code, so no formula must follow a model. plan_memory() (models/train/memory_plan.h) uses it.
#pragma once
#include <tapegrad/core/backend/backend.h>

namespace tg {

/// Calls f on tensors that have shapes but no elements. Ops are checked, recorded and released as usual, without
/// kernels. memory_stats() of each device begins at 0 and counts exactly the bytes of tensors. It excludes rounding and
/// caches of allocators, and scratch memory of GPU kernels.
///
/// item() and to_vector() read zeros. data<T>() is an Error, and so are more than 2^62 bytes. Compiled functions run as
/// plain functions. An Error of kind state if tensors that f made outlive it. Only the calling thread is affected;
/// calls nest.
void dry_run(const std::function<void()>& f);

namespace detail {
class DryRun;
extern constinit thread_local DryRun* t_dry_run;
inline bool running_dry() { return t_dry_run; }
BackendRuntime& dry_runtime(Backend, BackendRuntime& real);  // replaces the real one
}  // namespace detail

}  // namespace tg
