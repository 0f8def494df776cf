// `--profile FILE` of a training run: a few steps after warm-up are recorded, written to FILE as a trace and to
// FILE.txt as tables, and summed up in a few lines. User: run_session.cpp.
#pragma once
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/train/roofline.h>

#include <optional>
#include <string>
#include <string_view>

namespace tg::apps {

class StepProfile {
 public:
  // Of a run that has so many steps left. The first ones are slower (memory, kernels that are loaded): up to 3 are left
  // out, at most half, and then up to 5 are recorded.
  // With a machine, the tables have each op's share of what it sustains.
  StepProfile(std::string file, int64_t steps_left, std::optional<Machine> machine = {});
  // An Error if one of the files could not be written at the end, or holds something else.
  static void check(std::string_view command, const std::string& file);
  void before_step();
  // What to print after the last of them, when the files are written; empty before and later. An Error of a file.
  std::string after_step();
  std::string end();  // the same, when the run ends earlier

 private:
  std::string file_;
  int64_t warm_up_, steps_, done_ = 0;
  std::optional<Machine> machine_;
  std::optional<Profiler> profiler_;
  std::optional<WorkScope> work_;
};

}  // namespace tg::apps
