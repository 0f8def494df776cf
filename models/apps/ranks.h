// Runs of several processes started by mpirun or srun. A no-op for one process.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/device.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::apps {

// Whether this is rank 0, which writes files and prints.
bool is_main_rank();
// Prints on stderr, from rank 0.
void print_note(const std::string&);
// The device of this rank: each takes a separate GPU. An Error if the machine has fewer GPUs than ranks.
Device device_of_rank(Device);
// Ranks on the same CPUs divide the threads equally.
void share_threads();
// Throws an Error on all ranks, which lists the differences, unless all have the same texts. Takes pairs (name, text).
void check_same(const std::vector<std::pair<std::string, std::string>>&);
// Throws an Error if there are several processes, because each would repeat the command.
void check_alone(std::string_view command);
// The signal that any rank received, or 0. Collective.
int agreed_signal();
// After an Error's message: ends all ranks with this status.
void end_ranks(int status);
// The prefix of an Error's message: "[rank 1] ", or "" for one process. Ranks other than 0 wait first: when all fail,
// rank 0 prints and ends them.
std::string rank_of_error();

}  // namespace tg::apps
