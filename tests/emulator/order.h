// What is known to have happened before what, among the threads and asynchronous units of the running block: vector
// clocks within an epoch, which ends when all threads of the block meet. For the emulator's own sources.
#pragma once
#include <tapegrad/emulator/internal.h>

namespace simt::engine {

// Asynchronous units take part in the order under thread numbers of their own.
inline constexpr unsigned tma_unit = max_threads, warpgroup_unit = max_threads + 1;
inline constexpr unsigned max_units = max_threads + 32;
inline constexpr std::uint16_t in_flight = 0x7ff;  // the "thread" of an asynchronous copy

struct Stamp {  // when a thread did something
  std::uint32_t epoch = 0;
  std::uint16_t thread = 0, clock = 0;
  bool operator==(const Stamp&) const = default;
};

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

extern std::uint32_t epoch;        // grows at each barrier of a block and at each block's begin
extern std::uint32_t block_epoch;  // the epoch at which this block began

extern std::array<Clock, max_units> known_to;
extern std::array<std::uint16_t, max_units> clocks;  // each thread's own time, from 1 in each epoch

// Before every access: inline.
inline Stamp now(unsigned unit) { return {epoch, static_cast<std::uint16_t>(unit), clocks[unit]}; }
inline Stamp now() { return now(current->index); }
// Is work of this block with that stamp known to the unit?
inline bool before(const Stamp& s, unsigned unit) {
  if (s.epoch < epoch || s.thread == unit) return true;
  const Clock& k = known_to[unit];
  return k.epoch == epoch && s.thread < max_units && k[s.thread] > s.clock;
}
inline bool before(const Stamp& s) { return before(s, current->index); }

void order_begin();                                     // a block begins
void order_block();                                     // all its threads met
void order_threads(const unsigned* index, unsigned n);  // these met
void order_release(Clock&, unsigned unit);              // the unit's work is known to who acquires
void order_acquire(unsigned unit, const Clock&);
void order_async_fence();  // the current thread's writes so far are visible to asynchronous units
bool async_fenced(const Stamp&);
bool order_restart();  // between launches: begins the count of epochs again if it grew long; true: old stamps are void

}  // namespace simt::engine
