// AMX on machines without it: each tile instruction traps as an illegal one, and a handler computes what it would.
#pragma once

namespace tg {
// While one lives, tile instructions run on x86-64 machines with AVX-512 under Linux. A few of them take microseconds.
// One at a time, made in a test case, since doctest sets handlers before.
class EmulatedAmx {
 public:
  EmulatedAmx();
  ~EmulatedAmx();
  EmulatedAmx(const EmulatedAmx&) = delete;
  EmulatedAmx& operator=(const EmulatedAmx&) = delete;
  static bool running() { return running_; }

 private:
  static inline bool running_ = false;
};
}  // namespace tg
