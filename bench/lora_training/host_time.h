// The host's share of a training step: from the cost of an op in a long chain of tiny ones, and the step's number of
// ops.
#pragma once
#include "lora_training/rows.h"

#include <string>

namespace tg::bench {

struct HostTime {
  struct In {
    double ns_per_op;  // of one-element ops, including their unfused kernels
    size_t ops;        // kernels of the step; a fused chain counts once
    double step;       // seconds
    double share() const { return 1e-9 * ns_per_op * double(ops) / step; }
  };
  In eager, compiled;
  double ratio;  // compiled / eager step time, alternating
  uint64_t replays = 0, graph_launches = 0;
  std::string why_no_graph = {};
};
struct HostTimeOptions {
  int ops = 2000, rounds = 21;
  double seconds = 1;
};
HostTime host_time(Device, HostTimeOptions = {});
std::string text(const HostTime&, HostTimeOptions = {});  // lines, with the formula

}  // namespace tg::bench
