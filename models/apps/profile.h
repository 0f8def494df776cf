// `--profile FILE` of a training run: writes a trace to FILE and tables to FILE.txt.
#pragma once
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/train/roofline.h>

#include <optional>
#include <string>
#include <string_view>

namespace tg::apps {

class StepProfile {
 public:
  // Skips up to 3 slow first steps (memory, kernel loading), at most half, then records up to 5. With a machine, the
  // tables have each op's share of what it sustains.
  StepProfile(std::string file, int64_t steps_left, std::optional<Machine> machine = {});
  // Throws an Error if a file cannot be written, or holds something else.
  static void check(std::string_view command, const std::string& file);
  void before_step();
  // After the last recorded step, writes the files (or throws an Error) and returns the summary; otherwise "".
  std::string after_step();
  std::string end();  // the same as after_step(), when the run ends early

 private:
  std::string file_;
  int64_t warm_up_, steps_, done_ = 0;
  std::optional<Machine> machine_;
  std::optional<Profiler> profiler_;
  std::optional<WorkScope> work_;
};

}  // namespace tg::apps
