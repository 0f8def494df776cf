// Progress and profile of a training run.
#pragma once
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/tools/roofline.h>
#include <tapegrad/models/train/log.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace tg::apps {

int terminal_width();  // COLUMNS, else the terminal's width, else 80

// One rewritten line on a terminal, otherwise a line every few seconds. Silent once standard output fails.
class Progress {
 public:
  // `done`: steps before this process. `kind` is bar, lines, none, or auto (a bar on a terminal). Several processes
  // print lines.
  Progress(int64_t steps, int64_t done, std::string_view kind, bool quiet);
  ~Progress();  // ends an open bar
  void show(const StepRecord&);
  void print(const std::string&);

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(const StepRecord&, int width) const;  // width 0: any
  void put(const std::string&);
  void end_line();

  int64_t steps_, done_;
  bool quiet_, shows_, terminal_, open_ = false, broken_ = false;  // open_: cursor after the bar
  double val_loss_, tokens_ = 0, seconds_ = 0;                     // sums after the last line
  Clock::time_point start_ = Clock::now(), shown_;
};

// `--profile FILE`: writes a trace to FILE and tables to FILE.txt.
class StepProfile {
 public:
  // Skips up to 3 slow steps (at most half), records up to 5.
  StepProfile(std::string file, int64_t steps_left, const std::string& machine);
  // An Error if a file cannot be written or has other contents.
  static void check(std::string_view command, const std::string& file);
  void before_step();
  // The last recorded step writes the files, or throws an Error, and prints the summary.
  void after_step(Progress&);
  void end(Progress&);  // ends a run early

 private:
  std::string file_;
  int64_t warm_up_, steps_, done_ = 0;
  std::optional<DeviceRoofline> machine_;
  std::optional<Profiler> profiler_;
  std::optional<WorkScope> work_;
};

}  // namespace tg::apps
