// How much is tried where a test makes its cases itself: random programs, kills. TG_TEST_EFFORT is 1
// for each commit (unset), 10, or 100 at night.
#pragma once
#include <tapegrad/core/check.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

inline int64_t test_effort() {
  const char* given = std::getenv("TG_TEST_EFFORT");
  const std::string_view s = given ? given : "1";
  TG_CHECK(s == "1" || s == "10" || s == "100", value, "[tests] TG_TEST_EFFORT is '{}'. It must be 1, 10 or 100.", s);
  return s == "1" ? 1 : s == "10" ? 10 : 100;
}

// Whether a test may take its time: always, but on the emulator at TG_TEST_EFFORT=1.
inline bool has_time() {
#ifdef TG_CUDA_EMULATED
  return test_effort() > 1;
#else
  return true;
#endif
}
// All of a list, or where there is no time one of it, which TG_TURN chooses, from commit to commit another.
template <class T> std::vector<T> in_turns(const std::vector<T>& all) {
  if (has_time()) return all;
  const char* turn = std::getenv("TG_TURN");
  return {all[turn ? std::stoull(turn) % all.size() : 0]};
}

}  // namespace tg
