// Alpha and beta of a network from measured exchanges. User: bench_comm.cpp.
#pragma once
#include <vector>

namespace tg::bench {

struct Exchange {
  double bytes, seconds;  // of a message; of all messages of a rank
};
// What a message takes: alpha + bytes beta.
struct Link {
  double alpha = 0, beta = 0;  // seconds, seconds per byte
};
// The link for which `messages` messages one after the other come nearest to each exchange: least squares of the
// relative errors, so that short messages count as much as long ones. Neither is negative: what noise would make so is
// 0, and the other one is fitted alone.
Link fit(const std::vector<Exchange>&, double messages);

}  // namespace tg::bench
