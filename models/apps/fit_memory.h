// Refuses a training run that does not fit in memory, and names settings that fit.
#pragma once
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/train/memory_plan.h>

namespace tg::apps {

// Throws an Error when the bytes of one tensor overflow 63 bits, because a plan cannot count them.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model and trains it. Before, throws an Error if the plan (with the data, if on the
// CPU) exceeds the device's total memory, unless options.ignore_memory. A memory Error in train() also tells the plan.
// Both name settings that fit. `planned` is in bytes, or 0 without a plan.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);

}  // namespace tg::apps
