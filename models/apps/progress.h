// What a person sees of a training run: one line that is rewritten when standard output is a terminal, else a plain
// line every few seconds. When standard output cannot be written any more (its reader or its terminal is gone) it is
// silent: a run is worth more than its display. Not the log (models/train/log.h).
#pragma once
#include <tapegrad/models/train/log.h>

#include <chrono>

namespace tg::apps {

// How a run is shown. `automatic`: a bar on a terminal, else lines; several processes, whose output may go through a
// terminal to a file, have lines.
enum class ProgressKind { automatic, bar, lines, none };
ProgressKind progress_kind(std::string_view name);  // auto, bar, lines, none

class Progress {
 public:
  Progress(int64_t steps, int64_t done, ProgressKind, bool quiet);  // done: steps before this process
  ~Progress();                     // ends the line, so that what comes after starts on one of its own
  void show(const StepRecord&);    // after each step
  void print(const std::string&);  // a text between the lines

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(const StepRecord&, int bar) const;
  void put(const std::string&);
  void end_line();

  int64_t steps_, done_;
  bool quiet_, shows_, terminal_, open_ = false, broken_ = false;  // open_: the cursor stands behind the rewritten line
  double val_loss_;
  Clock::time_point start_ = Clock::now(), shown_;
};

}  // namespace tg::apps
