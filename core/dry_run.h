/// @file
/// dry_run: a program without its memory and its kernels, to know beforehand what it would take. What is counted is
/// what the same code allocates when it really runs, so no formula has to follow a model. Users: plan_memory()
/// (models/train/memory_plan.h); core/ asks detail::running_dry().
#pragma once
#include <tapegrad/core/backend.h>

namespace tg {

/// Calls f, whose tensors have shapes and no elements: ops are checked, recorded and released as ever, and no kernel
/// runs. Inside, memory_stats() of a device begins at 0 and counts the bytes that tensors would take there, to the
/// byte; not what an allocator adds by rounding and keeps for reuse, nor what kernels of a GPU need while they run.
/// item() and to_vector() read zeros; data<T>() is an Error, and so is more than 2^62 bytes. Functions of compile() are
/// called as they are. An Error of kind state when tensors made inside outlive f. Of the calling thread; calls nest.
void dry_run(const std::function<void()>& f);

namespace detail {
class DryRun;
extern constinit thread_local DryRun* t_dry_run;
inline bool running_dry() { return t_dry_run; }
BackendRuntime& dry_runtime(Backend, BackendRuntime& real);  // in place of the real one
}  // namespace detail

}  // namespace tg
