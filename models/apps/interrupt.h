// Catches signals: the first asks the run to stop at its next safe point, a second one ends the process at once, except
// SIGHUP. mpirun and Slurm forward SIGUSR1 to all ranks. Only for the command line: a library must not change signal
// handlers.
#pragma once

namespace tg::apps {

// Writes beyond the file size limit (ulimit -f) or to a pipe without a reader return an error. By default the system
// silently kills the process.
void writes_fail_with_errors();

// Opens /dev/null for each closed standard stream, as in some daemons. Otherwise files of a run would get descriptors 0
// to 2, and printed text would go into them. Call it first in main().
void open_standard_streams();

// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 during its lifetime. Only one may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  // The signal received, or 0. Its exit status is 128 + signal.
  static int signal();
};

}  // namespace tg::apps
