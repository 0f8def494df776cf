// The flags of the programs of this folder: what to measure, for how long, and where to write it. Not a general parser
// of arguments; the only door to the library that is one, so that one file pays for compiling it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tg::bench {

struct Flags {
  std::string json, filter, commit, device = "cpu";
  double seconds = 0.3;
  bool quick = false, cpu_time = false;
};
// Nothing when the program is done: the help was asked for (status 0) or the flags are wrong (status 2).
std::optional<Flags> parse_flags(int argc, char** argv, int& status);

struct TrainingFlags {
  std::string json, baseline, filter, commit, device = "cpu", mode = "eager";
  double warmup = 3, target = 5;  // seconds
  int samples = 100;
  bool quick = false, against_document = false, cpu_time = false;
};
// The same for bench_training.
std::optional<TrainingFlags> parse_training_flags(int argc, char** argv, int& status);

struct TimeitFlags {  // words as they were given: timeit.h says which are right
  std::vector<std::string> sizes{"small", "medium"}, computations{"forward", "backward", "forward_backward"},
      mixed{"False", "True"};
  std::vector<int64_t> warmups{0, 1};
  int64_t steps = 5, batch = 16, context = 128, vocab = 10'000, threads = 0;  // threads 0: all
  uint64_t seed = 20230310;
  std::string json, filter, commit, device = "cpu", mode = "eager";
  bool matrix_only = false, against_document = false, check_warmup = false, cpu_time = false;
};
// The same for bench_gpt_timeit.
std::optional<TimeitFlags> parse_timeit_flags(int argc, char** argv, int& status);

struct LmFlags {  // words as they were given: lm_run.h says which are right
  std::string size = "2.7B", form = "document", precision = "f32", device = "cpu";
  std::vector<std::string> types{"forward", "backward", "train"};
  int64_t batch = 4, context = 512, vocab = 10'000, layers = 0, warmup = 3, threads = 0;  // 0: of the size; all
  uint64_t seed = 1;
  std::string json, csv, trace, commit;
  bool answers = false, against_document = false;
};
// The same for bench_lm_profile.
std::optional<LmFlags> parse_lm_flags(int argc, char** argv, int& status);

}  // namespace tg::bench
