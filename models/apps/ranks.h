// A run of several processes, which mpirun or srun started: what each is told before it begins, and what they agree on.
// With one process all of it is as if it were not there. Users: run_session.cpp, command.cpp.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/device.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::apps {

// Whether this process writes files and prints: rank 0.
bool is_main_rank();
// A line on stderr, from rank 0.
void print_note(const std::string&);
// The device of this rank: of several on a machine, each takes a GPU of its own. An Error if there are not as many.
Device device_of_rank(Device);
// The ranks that may use the same cpus share them equally: sets the number of threads.
void share_threads();
// An Error on all ranks, which names them and what differs, unless all say the same; pairs of what it is and a text.
void check_same(const std::vector<std::pair<std::string, std::string>>&);
// An Error unless this process is alone: for commands that several would do several times.
void check_alone(std::string_view command);
// The signal that any rank got, or 0: all ranks ask at the same places, and get the same answer.
int agreed_signal();
// Of an Error, after its message: all ranks end with this status, if there are several.
void end_ranks(int status);
// Before an Error's message: "[rank 1] ", or nothing. Of an Error that all ranks have, the message of rank 0 is enough:
// others wait for its end.
std::string rank_of_error();

}  // namespace tg::apps
