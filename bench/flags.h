// The flags of bench_ops and of bench_training: what to measure, for how long, and where to write it. Not a general
// parser of arguments; the only door to the library that is one, so that one file pays for compiling it.
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

struct TrainingFlags {
  std::string json, svg, baseline, filter, commit, device = "cpu", mode = "eager";
  double warmup = 3, target = 5;  // seconds
  int samples = 100;
  bool quick = false, against_document = false, cpu_time = false;
};
// The same for bench_training.
std::optional<TrainingFlags> parse_training_flags(int argc, char** argv, int& status);

}  // namespace tg::bench
