// Each figure is the median of 21 rounds.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>

#include <functional>
#include <optional>
#include <vector>

#include "common/program.h"
#include "common/stats.h"

namespace {
using namespace tg;
using Keep = ProfileOptions::Keep;

constexpr int kRounds = 21, kTimes = 20'000;

// ns per call, for an f that makes kTimes of them.
double nanoseconds(std::optional<Keep> keep, const std::function<void()>& f) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    std::optional<Profiler> profiler;
    if (keep) profiler.emplace(ProfileOptions{.keep = *keep});
    const double begin = bench::now();
    f();
    rounds.push_back(1e9 * (bench::now() - begin) / kTimes);
  }
  return bench::median(rounds);
}
double row(const char* what, const std::function<void()>& f) {  // returns `off`
  const double off = nanoseconds(std::nullopt, f);
  fmt::print("{:<34} {:>8.1f} {:>8.1f} {:>8.1f}\n", what, off, nanoseconds(Keep::totals, f),
             nanoseconds(Keep::records, f));
  return off;
}

// Makes the steps of `tapegrad train --arch nano`, on random tokens.
Trainer nano_trainer() {
  RunConfig run;
  run.model.vocab_size = 256;
  run.train.max_steps = 1'000'000, run.train.eval_every = 0, run.train.val_fraction = 0;
  std::vector<int64_t> ids(100'000);
  Rng rng;
  for (int64_t& id : ids) id = int64_t(rng.below(256));
  const Params params;
  return {Gpt(params, run.model), params, TokenData::from_tokens(ids), run.train};
}
// Relative time of steps with a profiler around every four, alternating with steps without.
double share_on(const std::function<void()>& step, Keep keep) {
  constexpr int kSteps = 4;
  const auto steps = [&] {
    for (int i = 0; i < kSteps; ++i) step();
  };
  const auto profiled = [&] {
    Profiler profiler(ProfileOptions{.keep = keep});
    steps();
    (void)profiler.stop();
  };
  return bench::measure_pair(profiled, steps, {.min_seconds = 3, .min_runs = 21}).ratio - 1;
}
void nano_step(double range_ns) {
  Trainer trainer = nano_trainer();
  const auto step = [&] { trainer.step(); };
  for (int i = 0; i < 3; ++i) step();
  Profiler profiler;
  step();
  const Profile p = profiler.stop();
  const size_t records = p.ranges.size() + p.kernels.size() + p.calls.size() + p.memory.size();
  const double seconds = bench::measure(step, {.min_seconds = 1, .min_runs = 21}).median;
  fmt::print("\nA training step of nano: {:.2f} ms; {} ranges, {} records in all\n", 1e3 * seconds, p.ranges.size(),
             records);
  fmt::print("off: each record is a load and a branch as ProfileRange is, together {:.4f} % of the step\n",
             1e-7 * double(records) * range_ns / seconds);
  for (const auto& [name, keep] : {std::pair{"totals", Keep::totals}, {"records", Keep::records}})
    fmt::print("{}: the step takes {:.2f} % longer, stop() included\n", name, 100 * share_on(step, keep));
}
int run(bool cpu_time) {
  const Tensor x = empty(Layout::contiguous({1}, DType::f32));
  fmt::print("{:<34} {:>8} {:>8} {:>8}\n", "ns each", "off", "totals", "records");
  row("an empty loop", [] {
    for (int i = 0; i < kTimes; ++i) asm volatile("" ::: "memory");
  });
  const double range_ns = row("ProfileRange(\"name\")", [] {
    for (int i = 0; i < kTimes; ++i) const ProfileRange range("name");
  });
  row("ProfileRange(Phase::forward)", [] {
    for (int i = 0; i < kTimes; ++i) const ProfileRange range(Phase::forward);
  });
  const Scope* const layer = detail::scope_within(detail::current_scope(), "layer");
  row("NameScope of a layer", [&] {
    for (int i = 0; i < kTimes; ++i) const NameScope here(layer);
  });
  row("exp of one element, eager, whole", [&] {
    for (int i = 0; i < kTimes; ++i) const Tensor y = tg::exp(x);
  });
  if (cpu_time) set_num_threads(1), bench::use_cpu_time();
  nano_step(range_ns);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  bench::SharedFlags f;
  const auto declare = [&](bench::Command& c) {
    bench::declare_shared(c, f, bench::kCpuTime);
    return [&] { return run(f.cpu_time); };
  };
  return apps::run_program(argc, argv, {"bench_profiler", "Measures what ranges and the profiler cost.", declare});
}
