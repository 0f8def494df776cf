// The flags of bench_ops. The only door to the argument parser here, so that one file pays for compiling it.
#pragma once
#include <optional>
#include <string>

namespace tg::bench {

struct Flags {
  std::string json, filter, commit;
  double seconds = 0.3;
  bool quick = false, cpu_time = false;
};
// Nothing when the program is done: the help was asked for (status 0) or the flags are wrong (status 2).
std::optional<Flags> parse_flags(int argc, char** argv, int& status);

}  // namespace tg::bench
