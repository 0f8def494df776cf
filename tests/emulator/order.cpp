#include <tapegrad/emulator/order.h>

#include <algorithm>
#include <bit>

namespace simt::engine {

std::uint32_t epoch = 1, block_epoch = 1;
std::array<Clock, max_units> known_to;
std::array<std::uint16_t, max_units> clocks;

namespace {
std::array<Stamp, max_threads> async_fences;  // last fence of each thread

std::uint16_t tick(unsigned unit) {
  if (clocks[unit] == 0xffff)
    fail(Fault::usage, {},
         "a thread synchronised with others more than 65534 times between two __syncthreads, which is "
         "more than the emulator can order");
  return ++clocks[unit];
}
}  // namespace

void Clock::refresh(std::uint32_t e) {
  if (epoch == e) return;
  epoch = e;
  chunks = 0;
}
void Clock::open(unsigned chunk) {
  if (!(chunks >> chunk & 1)) std::fill_n(&seen[chunk * 32], 32, 0);
  chunks |= std::uint64_t{1} << chunk;
}
void Clock::set(unsigned t, std::uint16_t v) {
  open(t / 32);
  seen[t] = v;
}
void Clock::join(const Clock& o) {
  for (std::uint64_t left = o.chunks; left; left &= left - 1) {
    const unsigned c = static_cast<unsigned>(std::countr_zero(left));
    open(c);
    for (unsigned i = c * 32; i < c * 32 + 32; ++i) seen[i] = std::max(seen[i], o.seen[i]);
  }
}

void order_begin() {
  block_epoch = ++epoch;
  clocks.fill(1);
}
void order_block() {
  ++epoch;
  clocks.fill(1);
}
void order_threads(const unsigned* index, unsigned n) {
  static Clock all;
  all.epoch = epoch;
  all.chunks = 0;
  for (unsigned i = 0; i < n; ++i) {
    Clock& k = known_to[index[i]];
    k.refresh(epoch);
    all.join(k);
  }
  for (unsigned i = 0; i < n; ++i) all.set(index[i], tick(index[i]));
  for (unsigned i = 0; i < n; ++i) known_to[index[i]].join(all);
}
void order_release(Clock& c, unsigned unit) {
  c.refresh(epoch);
  if (known_to[unit].epoch == epoch) c.join(known_to[unit]);
  c.set(unit, tick(unit));
}
void order_acquire(unsigned unit, const Clock& c) {
  known_to[unit].refresh(epoch);
  if (c.epoch == epoch) known_to[unit].join(c);
}
void order_async_fence() {
  const unsigned t = current->index;
  async_fences[t] = {epoch, static_cast<std::uint16_t>(t), tick(t)};
}
bool async_fenced(const Stamp& s) {
  const Stamp f = async_fences[s.thread];
  return s.epoch < f.epoch || (s.epoch == f.epoch && s.clock < f.clock);
}

bool order_restart() {
  if (epoch < 1U << 31) return false;
  epoch = block_epoch = 1;
  for (Clock& k : known_to) k.epoch = 0;
  async_fences.fill({});
  return true;
}

}  // namespace simt::engine
