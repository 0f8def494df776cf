/// @file
/// dry_run() measures a program's memory without running kernels.
/// plan_memory() (models/tools/memory_plan.h) uses it.
#pragma once
#include <tapegrad/core/backend/backend.h>

namespace tg {

/// Calls f on tensors without elements. Ops are checked, recorded and released as usual, without kernels.
/// memory_stats() of each device begins at 0 and counts exactly the bytes of tensors. It excludes rounding and caches
/// of allocators, and scratch memory of GPU kernels.
///
/// item() and to_vector() read zeros. data<T>() and more than 2^62 bytes are Errors, and tensors of f that outlive it
/// are an Error of kind state. Compiled functions run as plain functions. Only the calling thread is affected; calls
/// nest.
void dry_run(const std::function<void()>& f);

}  // namespace tg
