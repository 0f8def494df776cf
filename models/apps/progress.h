// Progress of a training run: a line that is rewritten on a terminal, otherwise a plain line every few seconds. The run
// continues silently when standard output fails (reader or terminal gone).
#pragma once
#include <tapegrad/models/train/log.h>

#include <chrono>

namespace tg::apps {

int terminal_width();  // columns; 80 if standard output is none

class Progress {
 public:
  // `done`: steps before this process. `kind` is bar, lines, none, or auto: a bar on a terminal, otherwise lines.
  // Several processes print lines, since their output may go through a terminal to a file.
  Progress(int64_t steps, int64_t done, std::string_view kind, bool quiet);
  ~Progress();                     // ends an open bar line
  void show(const StepRecord&);    // after each step
  void print(const std::string&);  // a text between the lines

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(const StepRecord&, int bar) const;
  void put(const std::string&);
  void end_line();

  int64_t steps_, done_;
  bool quiet_, shows_, terminal_, open_ = false, broken_ = false;  // open_: the cursor is after the rewritten line
  double val_loss_;
  Clock::time_point start_ = Clock::now(), shown_;
};

}  // namespace tg::apps
