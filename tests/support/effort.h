// TG_TEST_EFFORT scales generated cases: 1 for each commit (unset), 10, or 100 at night.
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

// Whether a test may be slow: not on the emulator or under sanitizers at TG_TEST_EFFORT=1.
inline bool has_time() {
#if defined(TG_CUDA_EMULATED) || defined(TG_SANITIZED)
  return test_effort() > 1;
#else
  return true;
#endif
}
// A whole list or, at low effort, the entries that TG_TURN chooses.
template <class T> std::vector<T> in_turns(const std::vector<T>& all, size_t step = 0) {
  if (has_time()) return all;
  if (step == 0) step = all.size();
  const char* turn = std::getenv("TG_TURN");
  std::vector<T> some;
  for (size_t i = turn ? std::stoull(turn) % step : 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

}  // namespace tg
