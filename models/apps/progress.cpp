#include <sys/ioctl.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/models/apps/progress.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tg::apps {
namespace {

std::string duration(double seconds) {
  const int64_t s = std::llround(std::clamp(seconds, 0.0, 8.64e6));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

int terminal_width() {
  winsize w{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

Progress::Progress(int64_t steps, int64_t done, std::string_view kind, bool quiet)
    : steps_(steps),
      done_(done),
      quiet_(quiet),
      shows_(!quiet && kind != "none"),
      terminal_(kind == "bar" || (kind != "lines" && isatty(STDOUT_FILENO) && Communicator::world()->size() == 1)),
      val_loss_(std::nan("")) {}
Progress::~Progress() { end_line(); }

std::string Progress::line(const StepRecord& r, int bar) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::string text = fmt::format("{:>{}}/{}", r.step, std::to_string(steps_).size(), steps_);
  if (bar > 0) {
    const auto full = size_t(bar * r.step / steps_);
    text += " [" + std::string(full, '#') + std::string(size_t(bar) - full, '.') + "]";
  }
  text += fmt::format("  loss {:.3f}", r.loss);
  if (!std::isnan(val_loss_)) text += fmt::format("  val {:.3f}", val_loss_);
  return text + fmt::format("  lr {:.1e}  {:.1f}k tok/s  ETA {}", r.lr, r.tokens_per_s / 1000,
                            duration(seconds / double(r.step - done_) * double(steps_ - r.step)));
}

void Progress::show(const StepRecord& r) {
  if (r.val_loss) val_loss_ = *r.val_loss;
  if (!shows_) return;
  const auto now = Clock::now();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(3000);
  if (now - shown_ < pause && !r.val_loss && r.step != steps_ && r.step != done_ + 1) return;
  shown_ = now;
  if (terminal_) {
    const int width = terminal_width(), rest = int(line(r, 0).size()) + 4;
    const std::string text = line(r, std::clamp(width - rest, 0, 30)).substr(0, size_t(width - 1));
    put("\r\x1b[K" + text);
    open_ = true;
    if (r.val_loss) end_line();  // keeps evaluations on the screen
  } else {
    put(line(r, 0) + "\n");
  }
}

void Progress::print(const std::string& text) {
  if (quiet_) return;
  end_line();
  put(text + "\n");
}

void Progress::put(const std::string& text) {
  if (!broken_) broken_ = std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0;
}
void Progress::end_line() {
  if (open_) put("\n");
  open_ = false;
}

}  // namespace tg::apps
