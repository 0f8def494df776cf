// The process: its standard streams and signals, and the ranks that mpirun or srun started.
#pragma once
#include <fmt/core.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/device.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::apps {

// For main(). Opens /dev/null for each closed standard stream, as in some daemons: otherwise printed text would go into
// files of a run. Writes beyond ulimit -f or to a pipe without a reader then fail: by default they kill the process.
void prepare_streams();

// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1, which mpirun and Slurm forward to all ranks: the first asks to stop at
// the next safe point, a second one ends the process at once, except SIGHUP. Only one may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  static int signal();  // the signal received, or 0; the status is 128 + signal
};

bool is_main_rank();  // rank 0 writes files and prints
void print_note(const std::string&);
template <class A, class... B> void print_note(fmt::format_string<A, B...> format, A&& a, B&&... b) {
  print_note(fmt::format(format, std::forward<A>(a), std::forward<B>(b)...));
}
// The device of this rank: each takes a separate GPU. An Error if the machine has fewer GPUs than ranks.
Device device_of_rank(std::string_view command, Device);
// Sets the threads of the CPU. 0: all; ranks on the same CPUs divide them equally.
void set_threads(int64_t);
// Throws an Error on all ranks, which lists the differences, unless all have the same texts. Takes pairs (name, text).
void check_same(std::string_view command, const std::vector<std::pair<std::string, std::string>>&);
// Throws an Error if there are several processes, because each would repeat the command.
void check_alone(std::string_view command);
int agreed_signal();         // the signal that any rank received, or 0; collective
void end_ranks(int status);  // after an Error's message: ends all ranks with this status
// "[rank 1] ", or "" for one process. Ranks other than 0 wait first: when all fail, rank 0 prints and ends them.
std::string rank_of_error();

}  // namespace tg::apps
