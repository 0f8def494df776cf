// The training loop of a command.
#pragma once
#include <tapegrad/models/apps/run.h>

namespace tg::apps {

// An Error if a tensor's bytes overflow the plan's 63 bits.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model. An Error if the plan (on the CPU with data) exceeds the memory, unless
// options.ignore_memory. Memory Errors of train() tell the plan. `planned`: bytes, or 0.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);
// Checks memory, calls make(), locks the folder, trains to the end or a signal. Returns the exit status.
int run_training(const TrainOptions&, RunSetup&, Device, const std::function<TrainedModel()>& make);

}  // namespace tg::apps
