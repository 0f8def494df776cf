// CUDA kernels, streams, graphs and memory without a GPU; every access is checked (README.md). Tests use namespace
// simt; simt::engine is for language.h, ptx.h and hopper.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include <tapegrad/emulator/runtime.h>
#include <tapegrad/emulator/types.h>

namespace simt {

enum class Fault {
  race,           // shared memory, no barrier between two threads
  uninitialised,  // a read of unwritten bytes
  out_of_bounds,  // no allocation, freed, or past a static array
  misaligned,     // a misaligned vector access
  host_memory,    // host memory, or another thread's locals
  divergence,     // threads at different barriers, or returned
  deadlock,       // no thread can run
  lane_mask,      // wrong mask, or read of an absent lane
  async_copy,     // shared memory with a copy in flight
  stream_order,   // same bytes, no order between streams
  missing_fence,  // another block's write without __threadfence
  block_race,     // two blocks wrote the same bytes
  usage,          // invalid launch, copy or handle; wrong store
};
const char* name(Fault);

struct Report {
  Fault fault;
  std::string text;
};

// Finishes queued work, then orders later work. Zero: threads and blocks forward, stream operations at once; one:
// backward, as late as possible; above: shuffled by the seed. Default: TG_EMULATE_SCHEDULE, or zero.
void set_schedule(std::uint64_t seed);
// Frees device memory, streams and reports, then set_schedule(). Not while tensors exist.
void reset(std::uint64_t seed = 0);
std::uint64_t schedule();

// Default 4 GiB. reset() restores it.
void set_memory(std::size_t bytes);
// Result of cudaGetDeviceCount; cudaSuccess undoes it.
void set_no_device(cudaError_t why);
// Default 1. A process can use the first device that it chooses. reset() forgets both.
void set_devices(int n);
void set_child_graphs(bool accepted, bool updated = true);  // default true
// 86 is 8.6; default 90. Kernels have images for 8.x and 9.0.
void set_capability(int number);
// Default and maximum: 227 KiB per block.
void set_shared_limit(std::size_t bytes);

// Accesses are checked against an allocator's blocks of cudaMalloc's segments.
void note_segment(void* p, std::size_t bytes);  // no byte may be touched yet
// From this point of the stream the bytes exist, unwritten. Others are out of bounds.
void note_allocated(void* p, std::size_t bytes, cudaStream_t);
void note_freed(void* p, std::size_t bytes, cudaStream_t);

const std::vector<Report>& reports();
std::string describe();  // all reports, one per line

struct Statistics {
  std::uint64_t switches, accesses, launches;
  std::uint64_t pending;    // not yet run
  std::uint64_t addresses;  // bytes of address space used
};
Statistics statistics();

using Site = std::source_location;

namespace engine {

// --- launching
struct Call {
  void (*run)(const void* self);
  std::shared_ptr<const void> self;
  std::size_t bytes;  // size of *self
  const void* kernel;
};
cudaError_t launch(Call, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t);

// --- inside a kernel
void* dynamic_shared();
void sync_threads(Site);
void named_barrier(int id, int threads, bool wait, Site);
void fence();
unsigned lane();

// Lanes of `mask` meet; the last one runs combine(frames, lanes), which also identifies the operation.
using Combine = void (*)(void* const* frames, unsigned lanes);
void collective(unsigned mask, void* frame, Combine combine, Site);
void sync_warp(unsigned mask, Site);
[[noreturn]] void absent_lane(unsigned lane, unsigned source);

enum class Access { read, write, atomic };
void touch(const void* p, std::size_t bytes, Access, const void* pc);

void store(void* to, const void* from, unsigned bytes, bool shared);

void cp_async(void* shared, const void* global, unsigned bytes, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned left);

void ldmatrix(std::uint32_t* r, const void* row, int matrices, bool transposed, Site);
void mma_bf16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site);
void mma_s8(int* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site);

template <class T, class F> __attribute__((no_sanitize("thread"), noinline)) T atomic(T* p, F f) {
  touch(p, sizeof(T), Access::atomic, __builtin_return_address(0));
  const T old = *p;
  *p = f(old);
  return old;
}

}  // namespace engine
}  // namespace simt
