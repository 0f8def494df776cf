// Happens-before order of accesses within the running block. Two accesses of the same bytes, one a write, neither
// atomic, are a fault unless one happens before the other.
//
// Each thread u has a clock, clocks[u], and a vector clock, known_to[u]. An access of u is stamped with the epoch, u
// and clocks[u]. It happens before an access of thread t if its epoch is over, if u is t, or if known_to[t][u] is above
// its clock. These operations order accesses:
// - __syncthreads ends the epoch;
// - __syncwarp: the lanes tick their clocks and join their vector clocks (shuffles and votes order nothing);
// - named barriers and mbarriers: an arriving thread releases (ticks, and joins its vector clock into the barrier's),
//   a waiting thread acquires (joins the barrier's into its own);
// - cp.async: the bytes belong to the "thread" in_flight until the wait;
// - TMA and wgmma are units with separate clocks; fence.proxy.async publishes a thread's writes to them.
//
// Blocks are unordered, except that another block's write may be read or overwritten after its thread's __threadfence,
// and its read overwritten after an atomic of this block (shadow.cpp).
#pragma once
#include <tapegrad/emulator/internal.h>

namespace simt::engine {

inline constexpr unsigned tma_unit = max_threads, warpgroup_unit = max_threads + 1;
inline constexpr unsigned max_units = max_threads + 32;
inline constexpr std::uint16_t in_flight = 0x7ff;  // the "thread" of an asynchronous copy

struct Stamp {  // time of an access
  std::uint32_t epoch = 0;
  std::uint16_t thread = 0, clock = 0;
  bool operator==(const Stamp&) const = default;
};

// A vector clock of the current epoch; all threads know earlier epochs.
struct Clock {
  std::uint32_t epoch = 0;
  std::uint64_t chunks = 0;  // groups of 32 threads with an entry
  std::array<std::uint16_t, max_units> seen;

  void refresh(std::uint32_t now);
  std::uint16_t operator[](unsigned t) const { return chunks >> t / 32 & 1 ? seen[t] : 0; }
  void open(unsigned chunk);
  void set(unsigned t, std::uint16_t v);
  void join(const Clock&);
};

extern std::uint32_t epoch;        // grows at __syncthreads and block begins
extern std::uint32_t block_epoch;  // the block's first epoch

extern std::array<Clock, max_units> known_to;
extern std::array<std::uint16_t, max_units> clocks;  // restart at 1 in each epoch

inline Stamp now(unsigned unit) { return {epoch, static_cast<std::uint16_t>(unit), clocks[unit]}; }
inline Stamp now() { return now(current->index); }
inline bool before(const Stamp& s, unsigned unit) {
  if (s.epoch < epoch || s.thread == unit) return true;
  const Clock& k = known_to[unit];
  return k.epoch == epoch && s.thread < max_units && k[s.thread] > s.clock;
}
inline bool before(const Stamp& s) { return before(s, current->index); }

void order_begin();
void order_block();                                     // __syncthreads
void order_threads(const unsigned* index, unsigned n);  // __syncwarp of these threads
void order_release(Clock&, unsigned unit);              // publishes the unit's work
void order_acquire(unsigned unit, const Clock&);
// Publishes writes to asynchronous units.
void order_async_fence();
bool async_fenced(const Stamp&);
// Called between launches; true: old stamps are void.
bool order_restart();

}  // namespace simt::engine
