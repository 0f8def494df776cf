// Steps of training runs, and their memory.
#pragma once
#include <tapegrad/models/apps/run.h>

namespace tg::apps {

// Throws an Error when the bytes of one tensor overflow 63 bits, because a plan cannot count them.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model. Before, throws an Error if the plan (with the data, if on the CPU) exceeds the
// device's memory, unless options.ignore_memory. A memory Error in train() also tells the plan. `planned`: bytes, or 0.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);
// Checks the memory, calls make(), locks the folder, trains until the end or a signal. Returns the exit status.
int run_training(const TrainOptions&, RunSetup&, Device, const std::function<TrainedModel()>& make);

}  // namespace tg::apps
