// The ops that bench_ops measures, at the shapes of models that fit the device, with the work that each run does by
// definition: not what a kernel happens to do.
#pragma once
#include "common/results.h"

#include <functional>

namespace tg::bench {

struct OpRow {
  RowId id;
  double flop = 0, bytes = 0;                        // one of them; bytes: inputs read and outputs written, once each
  enum class Moves { to_another, in_place, reads };  // what the peak does: copies, updates, or reads
  Moves moves = Moves::to_another;
  std::function<std::function<void()>()> make = {};  // makes the inputs and returns what runs once
};
std::vector<OpRow> op_rows(Device);

}  // namespace tg::bench
