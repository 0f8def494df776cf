// How much of a training step is the host's work of running ops, and not the kernels': from what an op costs in a long
// run of tiny ones, and the number of ops of the step. Users: bench_training.
#pragma once
#include "lora_training/rows.h"

#include <string>

namespace tg::bench {

struct HostTime {
  struct In {          // a mode
    double ns_per_op;  // of ops on one element, each a kernel of its own: these tiny kernels are part of it
    size_t ops;        // kernels of the step, a fused chain counted once
    double step;       // seconds
    double share() const { return 1e-9 * ns_per_op * double(ops) / step; }
  };
  In eager, compiled;
  double ratio;                              // time of a compiled step over that of an eager one, measured in turn
  uint64_t replays = 0, graph_launches = 0;  // of the compiled step, as CompileStats has them
  std::string why_no_graph = {};
};
struct HostTimeOptions {
  int ops = 2000, rounds = 21;
  double seconds = 1;  // for the steps
};
HostTime host_time(Device, HostTimeOptions = {});
std::string text(const HostTime&, HostTimeOptions = {});  // lines, with the formula

}  // namespace tg::bench
