// Branches of a program: calls that touch the same bytes keep their order, the rest may overlap.
#include <tapegrad/core/plan/executable.h>

#include "support/helpers.h"

using namespace tg;
using detail::Access;

namespace {
// Whether each call must end before another begins.
std::vector<std::vector<bool>> ordered(const std::vector<CallOrder>& calls) {
  std::vector<std::vector<bool>> before(calls.size(), std::vector<bool>(calls.size()));
  std::vector<int> last(256, -1);  // call of each branch
  for (size_t k = 0; k < calls.size(); ++k) {
    const auto follow = [&](size_t d) {
      before[d][k] = true;
      for (size_t i = 0; i < d; ++i) before[i][k] = before[i][k] || before[i][d];
    };
    if (int& former = last[calls[k].branch]; former >= 0) follow(size_t(former));
    last[calls[k].branch] = int(k);
    for (const uint32_t d : calls[k].after) {
      CHECK(d < k);
      CHECK(calls[d].branch != calls[k].branch);
      follow(d);
    }
  }
  return before;
}
}  // namespace

TEST_CASE("branches: calls that touch the same bytes, and of which one writes, keep their order") {
  Rng rng{7};
  int beside = 0;
  for (int round = 0; round < 300; ++round) {
    const auto calls = uint32_t(1 + rng.below(24));
    std::vector<Access> all;
    for (uint32_t k = 0; k < calls; ++k)
      for (uint64_t n = rng.below(5); n-- > 0;) {
        const uintptr_t begin = rng.below(40);
        all.push_back({k, uint32_t(rng.below(3)), begin, begin + 1 + rng.below(12), rng.below(3) == 0});
      }
    const std::vector<CallOrder> order = detail::find_branches(calls, all);
    REQUIRE(order.size() == calls);
    const auto before = ordered(order);
    for (const Access& a : all)
      for (const Access& b : all)
        if (a.call < b.call && a.of == b.of && a.begin < b.end && b.begin < a.end && (a.writes || b.writes))
          CHECK(before[a.call][b.call]);
    for (uint32_t i = 0; i < calls; ++i)
      for (uint32_t k = i + 1; k < calls; ++k) beside += !before[i][k];
  }
  CHECK(beside > 1000);
}
TEST_CASE("branches: gradients of weights run beside those of activations, and the update waits for all") {
  // Backward of three layers: dy of layer i is memory i + 1, its gradients 10 + i.
  constexpr uintptr_t kBytes = 100 << 20;
  std::vector<Access> all;
  uint32_t call = 0;
  for (uint32_t layer = 3; layer > 0; --layer) {
    all.push_back({call, layer, 0, kBytes, false}), all.push_back({call++, 10 + layer, 0, kBytes, true});
    all.push_back({call, layer, 0, kBytes, false}), all.push_back({call++, layer - 1, 0, kBytes, true});
  }
  for (const uint32_t g : {0, 11, 12, 13}) all.push_back({call, g, 0, kBytes, false});
  const std::vector<CallOrder> order = detail::find_branches(call + 1, all);
  std::vector<int> branch;
  for (const CallOrder& o : order) branch.push_back(o.branch);
  CHECK(branch == std::vector{1, 0, 1, 0, 0, 0, 0});  // dy of the first layer is on the longest path
  CHECK(order[2].after == std::vector<uint32_t>{1});
  CHECK(order[6].after == std::vector<uint32_t>{2});
}
