// Process: standard streams, signals and ranks of mpirun or srun.
#pragma once
#include <fmt/core.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/device.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::apps {

// For main(). Opens /dev/null for closed standard streams, whose numbers files would get. Ignores SIGXFSZ and SIGPIPE:
// writes fail instead.
void prepare_streams();

// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 (mpirun, Slurm forward them): the first asks to stop at the next safe
// point, a second ends the process, except SIGHUP. Only one may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  static int signal();  // received signal or 0; exit status: 128 + signal
};

bool is_main_rank();  // rank 0 writes files and prints
void print_note(const std::string&);
template <class A, class... B> void print_note(fmt::format_string<A, B...> format, A&& a, B&&... b) {
  print_note(fmt::format(format, std::forward<A>(a), std::forward<B>(b)...));
}
// Device of this rank, one GPU each. An Error if the machine has fewer GPUs than ranks.
Device device_of_rank(std::string_view command, Device);
// Sets the CPU threads. 0: all; ranks on the same CPUs share them equally.
void set_threads(int64_t);
// An Error with the differences on all ranks, unless their texts are equal. Takes pairs (name, text).
void check_same(std::string_view command, const std::vector<std::pair<std::string, std::string>>&);
// An Error for several processes: each would repeat the command.
void check_alone(std::string_view command);
int agreed_signal();         // a signal of any rank, or 0; collective
void end_ranks(int status);  // ends all ranks after an Error's message
// Message prefix "[rank 1] ", "" for one process. Other ranks wait: if all fail, rank 0 prints and ends them.
std::string rank_of_error();

}  // namespace tg::apps
