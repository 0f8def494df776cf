/// @file
/// The thread pool of the CPU backend: parallel_for() runs numbered tiles on the calling thread and the workers. It is
/// not a task queue, and for kernels alone. How work is cut into tiles is the caller's choice and must depend on the
/// problem alone; then results do not depend on the number of threads. After fork() the child has no workers:
/// parallel_for() runs on the calling thread there, unless another thread was inside it at that moment;
/// set_num_threads() must not be called in the child once the parent has used the pool.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tg::cpu {

/// Threads that a parallel_for may use, the caller included. Default: the cpus in the process's affinity mask, or as
/// many as its cgroup's quota of processor time keeps busy (rounded up) if these are fewer; the environment variable
/// TG_THREADS overrides it. An Error if that is not a number in 1..max_threads().
int num_threads();
/// Sets num_threads(). Waits for a parallel_for of another thread. An Error if n is not in 1..max_threads(), or inside
/// a parallel_for.
void set_num_threads(int n);
/// The number of cpus in the process's affinity mask when the pool was first used.
int max_threads();

namespace detail {
// One call for each tile, or piece; compiled once, so that a kernel is compiled into its call alone.
void run_tiles(int64_t tiles, void (*call)(void* f, int64_t tile), void* f);
void run_pieces(int64_t n, int64_t grain, void (*call)(void* f, int64_t begin, int64_t end), void* f);
template <class F> void* address(F& f) { return const_cast<void*>(static_cast<const void*>(std::addressof(f))); }
int threads_from(const char* env, int cpus, double quota);  // the meaning of TG_THREADS; null is unset
}  // namespace detail

/// f(tile) once for every tile in [0, tiles), in any order, on any thread; returns when all are done. Each thread
/// begins with its own part of them, the same for every job of as many tiles, and then helps the others. f is an object
/// with a call operator, called from several threads at once. It runs on the calling thread alone when tiles <= 1,
/// inside another parallel_for, or while another thread uses the pool. An exception skips the tiles not yet begun; the
/// first one is rethrown here.
template <class F> void parallel_for(int64_t tiles, F&& f) {
  using Callable = std::remove_reference_t<F>;
  detail::run_tiles(
      tiles, [](void* g, int64_t tile) { (*static_cast<Callable*>(g))(tile); }, detail::address(f));
}

/// f(begin, end) for [0, n) cut into pieces of `grain`; the last may be shorter. A piece is worth a thread from some
/// 5 us of work on. As above otherwise. An Error if grain < 1.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  using Callable = std::remove_reference_t<F>;
  detail::run_pieces(
      n, grain, [](void* g, int64_t begin, int64_t end) { (*static_cast<Callable*>(g))(begin, end); },
      detail::address(f));
}

}  // namespace tg::cpu
