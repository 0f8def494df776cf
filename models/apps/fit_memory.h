// What a run of training takes, before it begins: refusals of what cannot fit, with what would, and the same words for
// a run that memory has ended. Users: run_session.cpp, inspect.cpp.
#pragma once
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/train/memory_plan.h>

namespace tg::apps {

// An Error when a tensor of the run alone has more bytes than 63 bits count, which no plan could say.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model and trains it. Before, an Error when the plan of the run, with its data on the
// CPU, is more than the device has in all, unless options.ignore_memory; afterwards, an Error about memory tells the
// plan too. Both name the settings that would fit. `train` is told the plan in bytes, or 0 if it was not asked for.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);

}  // namespace tg::apps
