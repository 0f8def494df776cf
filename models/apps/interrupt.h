// Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 as a question: the first asks the running work to stop at its next good moment, a
// second one, but for SIGHUP, ends the process at once. mpirun and Slurm pass SIGUSR1 on to all ranks. For the command
// line only: a library leaves signals alone.
#pragma once

namespace tg::apps {

// A write past the limit of a file's size (ulimit -f) and one to a pipe without a reader fail with an error, where the
// system would end the process without a word. For the rest of the process.
void writes_fail_with_errors();

// Opens /dev/null where the process was started without standard input, output or error, as some daemons are: else the
// first files of a run would get these numbers, and what is printed would go into them. First thing in main().
void open_standard_streams();

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are caught. One at a time.
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
