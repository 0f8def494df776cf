// How much is tried where a test makes its cases itself: random programs, kills. TG_TEST_EFFORT is 1
// for each commit (unset), 10, or 100 at night.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/device.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace tg {

inline int64_t test_effort() {
  const char* given = std::getenv("TG_TEST_EFFORT");
  const std::string_view s = given ? given : "1";
  TG_CHECK(s == "1" || s == "10" || s == "100", value, "[tests] TG_TEST_EFFORT is '{}'. It must be 1, 10 or 100.", s);
  return s == "1" ? 1 : s == "10" ? 10 : 100;
}

// What the emulator, which is slow, takes of a list: all if the effort is above 1, and else one, which TG_TURN chooses,
// from commit to commit another. The CPU takes all.
template <class T> std::vector<T> in_turns(const std::vector<T>& all, Device device = Device::cuda()) {
  if (device == Device::cpu() || test_effort() > 1) return all;
  const char* turn = std::getenv("TG_TURN");
  return {all[size_t(turn ? std::atoll(turn) : 0) % all.size()]};
}

}  // namespace tg
