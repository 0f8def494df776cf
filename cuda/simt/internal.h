// What the engine's own sources share.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include <tapegrad/cuda/simt/emulator.h>

namespace simt::engine {

#ifdef SIMT_CHECKED
inline constexpr bool with_shadow = true;
#else
inline constexpr bool with_shadow = false;
#endif

inline constexpr unsigned max_threads = 1024;
inline constexpr std::size_t max_dynamic_shared = 227 * 1024;
inline constexpr std::size_t stack_bytes = 256 * 1024;

struct Copy {  // a cp.async in flight
  char* to;
  const char* from;
  unsigned bytes, group;
};

struct Product {  // a wgmma in flight
  float* d;
  std::uint64_t a, b;
  bool committed;
};

struct Thread {  // of the running block, as a fiber
  enum State : std::uint8_t { ready, waiting, done };
  void* sp = nullptr;
  char* stack = nullptr;
  void* fake_stack = nullptr;
  unsigned index = 0;
  uint3 id;
  State state = ready;
  // what it waits for
  const char* waits = "";
  Site site;
  void* frame = nullptr;
  // its asynchronous copies
  std::vector<Copy> copies;
  unsigned group = 0;
  // its warpgroup's products, and the accumulators as they were before them
  std::vector<Product> products;
  std::vector<std::pair<float*, std::array<float, 32>>> saved;
  bool fenced = false;
};

struct Launch {
  Call call;
  dim3 grid, block;
  std::size_t shared_bytes;
  unsigned op;
};

// The grid in progress.
extern const Launch* launch_now;
extern thread_local Thread* current;  // null outside kernels, and always in threads that run none
extern unsigned block_now;            // linear index
extern bool engine_busy;              // a combine is running: its accesses are not the kernel's
extern std::array<Thread, max_threads> threads;
extern unsigned thread_count;
extern char* const dynamic_arena;

// Asynchronous shared-memory work of the block (TMA) and its reset.
void hopper_block();
bool hopper_progress(bool must);  // may complete a transfer; must, if no thread can run

bool hopper_in_flight();  // at the end of the block: a fault

bool run(const Launch&);  // false: stopped by a fault
void wait(const char* what, Site);
void release(Thread&);

struct Where {
  const void* pc = nullptr;
  Site site;
  bool known = false;
  Where() = default;
  Where(const void* p) : pc(p) {}
  Where(Site s) : site(s), known(true) {}
};
// Records a fault; inside a kernel, stops the launch and does not return.
[[gnu::format(printf, 3, 4)]] void fail(Fault, Where, const char* format, ...);

std::uint64_t random();
struct Policy {
  enum Kind { forward, backward, shuffled } kind;
};
extern Policy policy;

// --- shadow memory and order (no-ops unless with_shadow) ------------------------------------------
void shadow_launch(const Launch&);
void shadow_block();                                    // a block begins
void order_block();                                     // all its threads met
void order_threads(const unsigned* index, unsigned n);  // these met
void async_begin(char* to, unsigned bytes);             // a copy to shared memory is in flight
void async_end(char* to, unsigned bytes, unsigned unit);
struct Op {
  unsigned stream = 0;
  std::vector<unsigned> seen;  // per stream: how many of its operations come before
};
extern std::vector<Op> ops;
void global_access(const void*, std::size_t, Access, unsigned op, Where);  // by a copy
// The same by an operation of a library, in whose name faults are; it may not read what nothing wrote.
void library_access(const void*, std::size_t, Access, unsigned op, const char* library);
// Queues an operation of a library: work(op) runs in the order of the stream.
void submit(cudaStream_t, std::function<void(unsigned op)> work);
bool in_arena(const void*);
void mark(const void*, std::size_t, std::uint8_t state);
void shadow_reset();

// Asynchronous units take part in the order under thread numbers of their own.
inline constexpr unsigned tma_unit = max_threads, warpgroup_unit = max_threads + 1;
inline constexpr unsigned max_units = max_threads + 32;

// What is known of each thread's work since the last barrier of the block; empty beforehand.
struct Clock {
  std::uint32_t epoch = 0;
  std::uint64_t chunks = 0;  // of 32 threads, with any knowledge
  std::array<std::uint16_t, max_units> seen;

  void refresh(std::uint32_t now);
  std::uint16_t operator[](unsigned t) const { return chunks >> t / 32 & 1 ? seen[t] : 0; }
  void open(unsigned chunk);
  void set(unsigned t, std::uint16_t v);
  void join(const Clock&);
};
void order_release(Clock&, unsigned unit);  // the unit's work is known to who acquires
void order_acquire(unsigned unit, const Clock&);
void order_async_fence();  // the current thread's writes so far are visible to asynchronous units
// A read of shared memory by an unit, on behalf of the current thread.
void unit_read(const void*, std::size_t, unsigned unit, Where);

struct Arena {
  char* base = nullptr;
  std::size_t used = 0, size = 0;
  std::uint8_t* state = nullptr;  // per byte
};
extern Arena arena;
enum Byte : std::uint8_t { absent, freed, unwritten, written };

}  // namespace simt::engine
