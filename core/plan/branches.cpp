// Finds calls of an Executable that may run in parallel, by memory hazards and the critical path.
#include <tapegrad/core/plan/executable.h>

#include <algorithm>
#include <array>

namespace tg::detail {
namespace {
using Calls = std::vector<std::vector<uint32_t>>;  // indexed by call

// Earlier calls that each call must follow: read after write, write after read, write after write.
Calls hazards(size_t calls, std::span<const Access> accesses) {
  Calls after(calls);
  std::vector<Access> open;  // accesses without a later write
  for (size_t i = 0; i < accesses.size();) {
    const uint32_t call = accesses[i].call;
    size_t end = i;
    for (; end < accesses.size() && accesses[end].call == call; ++end) {
      const Access& now = accesses[end];
      for (const Access& a : open)
        if (a.of == now.of && a.begin < now.end && now.begin < a.end && (a.writes || now.writes))
          after[call].push_back(a.call);
    }
    for (; i < end; ++i) {
      const Access& now = accesses[i];
      if (now.writes)
        std::erase_if(open, [&](const Access& a) {
          return a.call != call && a.of == now.of && now.begin <= a.begin && a.end <= now.end;
        });
      open.push_back(now);
    }
    std::ranges::sort(after[call]);
    const auto same = std::ranges::unique(after[call]);
    after[call].erase(same.begin(), same.end());
  }
  return after;
}
// Each call's slack to the critical path. A call costs its bytes read and written plus 1 MiB.
std::vector<uint64_t> slack(const Calls& after, std::span<const Access> accesses) {
  constexpr uint64_t kStart = 1 << 20;
  std::vector<uint64_t> cost(after.size(), kStart), begin(after.size()), late(after.size(), UINT64_MAX);
  for (const Access& a : accesses) cost[a.call] += a.end - a.begin;
  uint64_t end = 0;
  for (size_t k = 0; k < after.size(); ++k) {
    for (const uint32_t d : after[k]) begin[k] = std::max(begin[k], begin[d] + cost[d]);
    end = std::max(end, begin[k] + cost[k]);
  }
  for (size_t k = after.size(); k-- > 0;) {
    late[k] = std::min(late[k], end - cost[k]);
    for (const uint32_t d : after[k]) late[d] = std::min(late[d], late[k] - cost[d]);
    late[k] -= begin[k];
  }
  return late;
}
}  // namespace

std::vector<CallOrder> find_branches(size_t calls, std::span<const Access> accesses) {
  const Calls after = hazards(calls, accesses);
  const std::vector<uint64_t> late = slack(after, accesses);
  std::vector<CallOrder> r(calls);
  // Per branch: calls of the other branch below this index have run.
  std::array<uint32_t, 2> seen{};
  for (size_t k = 0; k < calls; ++k) {
    const auto branch = uint8_t(late[k] > 0);
    r[k].branch = branch;
    uint32_t last = 0;  // 1 + last dependency in the other branch
    for (const uint32_t d : after[k])
      if (r[d].branch != branch) last = d + 1;
    if (last > seen[branch]) r[k].after = {last - 1}, seen[branch] = last;
  }
  return r;
}

}  // namespace tg::detail
