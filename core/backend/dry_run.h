/// @file
/// dry_run(): runs a program without its memory and its kernels, to know beforehand how much memory it takes. It counts
/// what the same code allocates when it really runs, so no formula has to follow a model. plan_memory()
/// (models/train/memory_plan.h) uses it.
#pragma once
#include <tapegrad/core/backend/backend.h>

namespace tg {

/// Calls f on tensors that have shapes but no elements. Ops are checked, recorded and released as usual, and no kernel
/// runs. memory_stats() of each device begins at 0 and counts the bytes that tensors would take, exactly; it leaves out
/// rounding and caches of allocators, and scratch memory of GPU kernels.
///
/// item() and to_vector() read zeros. data<T>() is an Error, and so are more than 2^62 bytes. Compiled functions are
/// called as plain functions. An Error of kind state if tensors that f made outlive it. Only the calling thread is
/// affected; calls nest.
void dry_run(const std::function<void()>& f);

namespace detail {
class DryRun;
extern constinit thread_local DryRun* t_dry_run;
inline bool running_dry() { return t_dry_run; }
BackendRuntime& dry_runtime(Backend, BackendRuntime& real);  // in place of the real one
}  // namespace detail

}  // namespace tg
