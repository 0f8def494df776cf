// What the profiler costs: nanoseconds of a range, of a layer's scope, and of an op on one element, without a profiler,
// with one that keeps totals, and with one that keeps records. Medians of 21 rounds. No arguments.
#include <fmt/core.h>
#include <tapegrad/core/profiler.h>
#include <tapegrad/ops/pointwise.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

namespace {
using namespace tg;
using Keep = ProfileOptions::Keep;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 21, kTimes = 20'000;

// ns for one call of f, which runs kTimes of it.
double nanoseconds(std::optional<Keep> keep, const std::function<void()>& f) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    std::optional<Profiler> profiler;
    if (keep) profiler.emplace(ProfileOptions{.keep = *keep});
    const auto begin = Clock::now();
    f();
    rounds.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kTimes);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}
void row(const char* what, const std::function<void()>& f) {
  fmt::print("{:<34} {:>8.1f} {:>8.1f} {:>8.1f}\n", what, nanoseconds(std::nullopt, f), nanoseconds(Keep::totals, f),
             nanoseconds(Keep::records, f));
}
}  // namespace

int main() {
  const Tensor x = empty(Layout::contiguous({1}, DType::f32));
  fmt::print("{:<34} {:>8} {:>8} {:>8}\n", "ns each", "off", "totals", "records");
  row("an empty loop", [] {
    for (int i = 0; i < kTimes; ++i) asm volatile("" ::: "memory");
  });
  row("ProfileRange(\"name\")", [] {
    for (int i = 0; i < kTimes; ++i) const ProfileRange range("name");
  });
  row("ProfileRange(Phase::forward)", [] {
    for (int i = 0; i < kTimes; ++i) const ProfileRange range(Phase::forward);
  });
  const Scope* const layer = scope_within(current_scope(), "layer");
  row("InScope of a layer", [&] {
    for (int i = 0; i < kTimes; ++i) const InScope here(layer);
  });
  row("exp of one element, eager, whole", [&] {
    for (int i = 0; i < kTimes; ++i) const Tensor y = tg::exp(x);
  });
}
