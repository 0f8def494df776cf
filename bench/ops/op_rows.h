// The ops of bench_ops, at model shapes that fit the device, with the work of a run by definition, whatever a kernel
// does.
#pragma once
#include "common/results.h"

#include <functional>

namespace tg::bench {

struct OpRow {
  RowId id;
  // One of them. bytes: inputs read and outputs written, once each.
  double flop = 0, bytes = 0;
  enum class Moves { to_another, in_place, reads };  // which peak applies: copies, updates, or reads
  Moves moves = Moves::to_another;
  std::function<std::function<void()>()> make = {};  // makes the inputs; returns one run
};
std::vector<OpRow> op_rows(Device);

}  // namespace tg::bench
