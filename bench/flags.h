// The flags of bench_ops: what to measure, for how long, and where to write it. Not a general parser of arguments; the
// only door to the library that is one, so that one file pays for compiling it. For bench_ops.cpp.
#pragma once
#include <optional>
#include <string>

namespace tg::bench {

struct Flags {
  std::string json, filter, commit, device = "cpu";
  double seconds = 0.3;
  bool quick = false, cpu_time = false;
};
// Nothing when the program is done: the help was asked for (status 0) or the flags are wrong (status 2).
std::optional<Flags> parse_flags(int argc, char** argv, int& status);

}  // namespace tg::bench
