// Refuses a run that its device has too little memory for, before it allocates, and says what would fit. The bytes come
// from a dry_run() (core/dry_run.h) of the run itself. Users: lm_run.cpp, timeit.cpp.
#pragma once
#include <tapegrad/models/train/memory_plan.h>

namespace tg::bench {

// An Error of kind memory when the run takes more than the device has in all. Of each list of others it names the first
// that fits.
void check_fits(const Variant& run, const std::vector<std::vector<Variant>>& others, Device);
// "--batch 8", "--batch 4" ... down to 1, for a run of 16.
std::vector<Variant> smaller_batches(int64_t batch, const std::function<int64_t(int64_t batch)>& bytes);

}  // namespace tg::bench
