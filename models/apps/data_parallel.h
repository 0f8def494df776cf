// `tapegrad inspect --plan --ranks`: what a data parallel step takes on some numbers of ranks, in time and in memory.
// User: inspect.cpp.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/run_config.h>

namespace tg::apps {

struct RanksOptions {
  std::vector<int64_t> ranks;         // one column of the table each
  std::string machine, network;       // names or JSON files
  double bucket_mb = 0, rank_ms = 0;  // DataParallelOptions: 10^6 bytes, milliseconds
  bool one_each = false;              // a micro-batch for each rank, whatever the run says
};
Json ranks_plan_of(const std::string& model, const RunConfig&, const std::string& device, const RanksOptions&);
void print_ranks_plan(const Json&);

}  // namespace tg::apps
