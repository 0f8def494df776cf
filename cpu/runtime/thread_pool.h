/// @file
/// The CPU backend's thread pool: parallel_for() runs numbered tiles on the calling thread and the workers. Callers
/// split by the problem alone, so results do not depend on threads. A fork()ed child has no workers: parallel_for()
/// runs on the calling thread, unless another thread was inside it at the fork. The child must not call
/// set_num_threads() if the parent has used the pool.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tg::cpu {

/// Threads of a parallel_for, caller included. Default: cpus of the process's affinity mask, at most its cgroup's cpu
/// quota rounded up. The environment variable TG_THREADS overrides it; an Error unless it is in 1..max_threads().
int num_threads();
/// Sets num_threads(); waits for a parallel_for of another thread. An Error if n is not in 1..max_threads(), or inside
/// a parallel_for.
void set_num_threads(int n);
/// Cpus in the process's affinity mask at the first use of the pool.
int max_threads();

namespace detail {
// Type-erased: templates compile one call.
void run_tiles(int64_t tiles, void (*call)(void* f, int64_t tile), void* f);
void run_chunks(int64_t n, int64_t grain, void (*call)(void* f, int64_t begin, int64_t end), void* f);
template <class F> void* address(F& f) { return const_cast<void*>(static_cast<const void*>(std::addressof(f))); }
int threads_from(const char* env, int cpus, double quota);  // parses TG_THREADS; null is unset
}  // namespace detail

/// f(tile) once for every tile in [0, tiles), in any order, from several threads; returns when all are done. Each
/// thread starts with its own range, the same for every job of that size, then helps the others. All tiles run on the
/// calling thread when tiles <= 1, inside another parallel_for, or while another thread uses the pool. An exception
/// skips the tiles not yet begun; the first one is rethrown here.
template <class F> void parallel_for(int64_t tiles, F&& f) {
  using Callable = std::remove_reference_t<F>;
  detail::run_tiles(
      tiles, [](void* g, int64_t tile) { (*static_cast<Callable*>(g))(tile); }, detail::address(f));
}

/// f(begin, end) for ranges of `grain` indices of [0, n); the last may be shorter. A range pays for a thread from about
/// 5 us of work. Threads and exceptions: see parallel_for(tiles, f). An Error if grain < 1.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  using Callable = std::remove_reference_t<F>;
  detail::run_chunks(
      n, grain, [](void* g, int64_t begin, int64_t end) { (*static_cast<Callable*>(g))(begin, end); },
      detail::address(f));
}

/// parallel_for(tiles, f), or on the calling thread.
template <class F> void for_tiles(bool parallel, int64_t tiles, F&& f) {
  if (parallel) return parallel_for(tiles, f);
  for (int64_t t = 0; t < tiles; ++t) f(t);
}

}  // namespace tg::cpu
