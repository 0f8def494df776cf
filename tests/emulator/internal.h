#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <tapegrad/emulator/activity.h>
#include <tapegrad/emulator/emulator.h>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace simt::engine {

inline constexpr unsigned max_threads = 1024;
inline constexpr std::size_t max_dynamic_shared = 227 * 1024;
inline constexpr std::size_t stack_bytes = 256 * 1024;

struct Operation;

// Serialises host calls and kernels.
inline std::recursive_mutex& entry_mutex = *new std::recursive_mutex;
class Entry {
 public:
  explicit Entry(const Site& from = Site::current()) : lock_(entry_mutex) { call_begins(from); }
  ~Entry() { call_ends(); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

struct Copy {  // cp.async in flight
  char* to;
  const char* from;
  unsigned bytes, group;
};

struct Product {  // wgmma in flight
  void* d;
  std::uint64_t a, b;
  bool integers;  // int8: d is 64 x 256; bf16: 64 x 64
  bool committed;
  bool operator==(const Product& o) const { return a == o.a && b == o.b && integers == o.integers; }
};

struct Thread {
  enum State : std::uint8_t { ready, waiting, done, stopped };
  void* sp = nullptr;
  char* stack = nullptr;
  unsigned index = 0;
  uint3 id;
  State state = ready;
  const char* waits = "";
  Site site;
  void* frame = nullptr;
  std::vector<Copy> copies;
  unsigned group = 0;
  // wgmma, and the accumulators before them
  std::vector<Product> products;
  std::vector<std::pair<void*, std::vector<unsigned char>>> saved;
  bool fenced = false;
};

struct Launch {
  Call call;
  dim3 grid, block;
  std::size_t shared_bytes;
  const Operation* op;
};

extern const Launch* launch_now;
extern thread_local Thread* current;  // null outside kernels
extern unsigned block_now;            // linear index
extern bool engine_busy;              // a combine runs
extern std::array<Thread, max_threads> threads;
extern unsigned thread_count;
extern char* const dynamic_arena;

void run(const Launch&);

// resume() runs the fiber until it waits, fails or ends.
void prepare(Thread&, unsigned index);
void resume(Thread&);
void to_scheduler();
void finish_thread();

void wait(const char* what, Site);
void release(Thread&);

void hopper_block();
bool hopper_progress(bool must);  // must: no thread can run
void hopper_end();                // transfers in flight are faults

struct Where {
  const void* pc = nullptr;
  Site site;
  bool known = false;
  Where() = default;
  Where(const void* p) : pc(p) {}
  Where(Site s) : site(s), known(true) {}
};
// Inside a kernel, stops the launch without return.
[[gnu::format(printf, 3, 4)]] void fail(Fault, Where, const char* format, ...);
bool failed();
// Runs on the scheduler's stack.
void report_kernel(Thread&);
void report_deadlock(const char* text, const Thread*);
std::string coordinates(const uint3&);
const char* base_name(const char* path);
bool same(const Site&, const Site&);

std::uint64_t random();
struct Policy {
  enum Kind { forward, backward, shuffled } kind;
};
extern Policy policy;
extern Statistics counters;

void shadow_launch(const Launch&);
void shadow_block();
// Maximum bytes that a block of the launch wrote.
std::size_t static_shared();
bool is_global(const void*);  // device or pinned memory
bool is_shared(const void* p);
void async_begin(char* to, unsigned bytes);  // a copy to shared memory is in flight
void async_end(char* to, unsigned bytes, unsigned unit);
void unit_read(const void*, std::size_t, unsigned unit, Where);
void global_access(const void*, std::size_t, Access, const Operation&, Where);
// Faults name `library`; unwritten memory is one.
void library_access(const void*, std::size_t, Access, const Operation&, const char* library);

}  // namespace simt::engine
