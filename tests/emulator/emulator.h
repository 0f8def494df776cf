// A SIMT emulator: CUDA kernels, streams, graphs and memory on a machine without a GPU, for tests; not for speed. It
// executes the .cu files, compiled by the host compiler, and checks every access: threads of a block are fibers,
// streams are a graph of queued operations (README.md says what is found and what is not). Tests use namespace simt;
// what is in simt::engine is for language.h, ptx.h and hopper.h.
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
  race,           // shared memory: two threads, no barrier between
  uninitialised,  // a read of bytes that nothing wrote
  out_of_bounds,  // outside every allocation, or freed, or past a static array
  misaligned,     // a vector access off its alignment
  host_memory,    // a kernel touched memory of the host, or another thread's locals
  divergence,     // threads of a block at different barriers, or gone
  deadlock,       // nothing left to run
  lane_mask,      // a warp collective with a wrong mask, or a read of an absent lane
  async_copy,     // an access to shared memory that an asynchronous copy has in flight
  stream_order,   // two operations on the same bytes, no stream or event order between
  missing_fence,  // a read of another block's write with no __threadfence after it
  block_race,     // two blocks wrote the same bytes in one launch
  usage,          // an invalid launch, copy or handle; a store to another memory than it names
};
const char* name(Fault);

struct Report {
  Fault fault;
  std::string text;
};

// Waits for what is queued and chooses the order of what follows:
// 0: threads and blocks forward, each stream operation at once;
// 1: threads and blocks backward, each operation as late as a synchronisation allows;
// above: everything shuffled by the seed.
// A program starts with that of the environment variable TG_EMULATE_SCHEDULE, or 0.
void set_schedule(std::uint64_t seed);
// The same from the start: frees all device memory and streams and forgets reports. Not while tensors exist.
void reset(std::uint64_t seed = 0);
std::uint64_t schedule();

// The memory of the card, 4 GiB unless set: what does not fit is cudaErrorMemoryAllocation. reset() forgets it.
void set_memory(std::size_t bytes);
// From now on cudaGetDeviceCount finds no device and gives this error; cudaSuccess undoes it.
void set_no_device(cudaError_t why);
// The number of devices, 1 unless set. A process has the memory of one: the first that it chooses. The others are
// cudaErrorDevicesUnavailable to it, and are for other processes. reset() forgets both.
void set_devices(int n);
void set_child_graphs(bool);  // whether graphs take them: true, unless set

// For an allocator that cuts blocks from segments of cudaMalloc, so that accesses are checked against the blocks.
void note_segment(void* p, std::size_t bytes);  // fresh from cudaMalloc: nothing of it may be touched yet
// In the stream's order: the bytes exist and are unwritten. What lies between blocks is out of bounds.
void note_allocated(void* p, std::size_t bytes, cudaStream_t);
void note_freed(void* p, std::size_t bytes, cudaStream_t);

const std::vector<Report>& reports();
std::string describe();  // all reports, one a line

struct Statistics {
  std::uint64_t switches, accesses, launches;
  std::uint64_t pending;    // operations that were queued and have not run
  std::uint64_t addresses;  // bytes of the card's address space that were used so far
};
Statistics statistics();

using Site = std::source_location;

namespace engine {

// --- launching -----------------------------------------------------------------------------
struct Call {  // a kernel with its arguments
  void (*run)(const void* self);
  std::shared_ptr<const void> self;
  std::size_t bytes;  // of *self, which the kernel may read
  const void* kernel;
};
cudaError_t launch(Call, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t);

// --- inside a kernel -------------------------------------------------------------------------
void* dynamic_shared();
void sync_threads(Site);
void named_barrier(int id, int threads, bool wait, Site);
void fence();
unsigned lane();

// Lanes of `mask` meet here; the last runs combine(frames, lanes) for all.  Also names the operation.
using Combine = void (*)(void* const* frames, unsigned lanes);
void collective(unsigned mask, void* frame, Combine combine, Site);
void sync_warp(unsigned mask, Site);
[[noreturn]] void absent_lane(unsigned lane, unsigned source);

enum class Access { read, write, atomic };
void touch(const void* p, std::size_t bytes, Access, const void* pc);

// One instruction, to global or shared memory.
void store(void* to, const void* from, unsigned bytes, bool shared);

void cp_async(void* shared, const void* global, unsigned bytes, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned left);

void ldmatrix(std::uint32_t* r, const void* row, int matrices, bool transposed, Site);
void mma_bf16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site);
void mma_s8(int* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site);

// A read-modify-write that nothing interrupts (the emulator has one running thread).
template <class T, class F> __attribute__((no_sanitize("thread"), noinline)) T atomic(T* p, F f) {
  touch(p, sizeof(T), Access::atomic, __builtin_return_address(0));
  const T old = *p;
  *p = f(old);
  return old;
}

}  // namespace engine
}  // namespace simt
