// Ctrl-C and SIGTERM as a question: the first asks the running work to stop at its next good moment, the second ends
// the process at once. For the command line only: a library leaves signals alone.
#pragma once

namespace tg::apps {

// While it lives, SIGINT and SIGTERM are caught. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  // The signal that came, or 0. An exit status for it is 128 + signal.
  static int signal();
};

}  // namespace tg::apps
