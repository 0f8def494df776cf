// A state per byte; the host has access while an operation runs. Freed addresses are reused late, by work that comes
// after the free.
#pragma once
#include <tapegrad/emulator/queue.h>

namespace simt::engine {

struct Arena {
  char* base = nullptr;
  std::size_t used = 0, size = 0;
  std::uint8_t* state = nullptr;  // a Byte for each
};
extern Arena arena;
enum Byte : std::uint8_t { absent, freed, unwritten, written };

inline bool in_arena(const void* p) {
  const char* c = static_cast<const char*>(p);
  return c >= arena.base && c < arena.base + arena.size;
}
void mark(const void*, std::size_t, Byte);

class Open {
 public:
  Open();
  ~Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
};

// For operations after `seen`; null if the card is full.
char* allocate(std::size_t, const Counts& seen);
bool is_allocation(const void*);
void open_memory(char*, std::size_t, const Operation*);  // null: opened at once
void close_memory(char*, const Operation*);
std::string where_is(const void*);  // describes a byte that does not exist

void* allocate_pinned(std::size_t);
void free_pinned(void*);
bool is_pinned(const void*, std::size_t);

void memory_left(std::size_t* free, std::size_t* total);
void set_capacity(std::size_t);
void memory_reset();

}  // namespace simt::engine
