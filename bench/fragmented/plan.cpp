#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>

#include <algorithm>

#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
constexpr std::string_view kProgram = "bench_fragmented", kModes[] = {"linear", "train", "inference"},
                           kSteps[] = {"separate", "folded"}, kRuns[] = {"eager", "compiled"};
constexpr int64_t kSizes[] = {2048, 4096, 8192};
constexpr int64_t kLeastSize = 32, kMostSize = 131072;  // the low-rank path is size / 32 wide
constexpr int64_t kMostBatch = 1 << 20, kMostSteps = 1'000'000;

template <class T> void not_empty(std::string_view flag, const std::vector<T>& list) {
  TG_CHECK(!list.empty(), value, "[bench_fragmented] --{} is empty. It needs one or more. Omit the flag for all.",
           flag);
}
bool has_mode(const FragmentedFlags& f, CellMode mode) {
  return std::ranges::find(f.modes, name_of(mode)) != f.modes.end();
}
std::vector<FragmentedCell> cells_of(const FragmentedFlags& f) {
  std::vector<FragmentedCell> cells;
  for (const int64_t size : f.sizes)
    for (const int64_t batch : f.batches) {
      if (has_mode(f, CellMode::linear)) cells.push_back({size, batch});
      for (const int64_t fragments : f.fragments)
        for (const CellMode mode : {CellMode::train, CellMode::inference})
          if (has_mode(f, mode)) cells.push_back({size, batch, mode, fragments});
    }
  return cells;
}
void check_words(const FragmentedFlags& f) {
  not_empty("modes", f.modes), not_empty("step", f.step), not_empty("run", f.run);
  for (const std::string& mode : f.modes) known_place("modes", mode, kModes);
  not_empty("batches", f.batches), not_empty("fragments", f.fragments);
  for (const int64_t size : f.sizes) check_within(kProgram, "sizes", size, kLeastSize, kMostSize);
  for (const int64_t batch : f.batches) check_within(kProgram, "batches", batch, 1, kMostBatch);
  const bool fragmented = has_mode(f, CellMode::train) || has_mode(f, CellMode::inference);
  for (const int64_t fragments : f.fragments) {
    check_within(kProgram, "fragments", fragments, 1, kMostSize);
    for (const int64_t size : f.sizes)
      TG_CHECK(
          !fragmented || size % fragments == 0, value,
          "[bench_fragmented] --sizes {} cannot be split into --fragments {}. Each size must be a multiple of each "
          "number of fragments, such as 2048 of 8.",
          size, fragments);
  }
}
template <class T> void check_once(const std::vector<T>& all) {
  for (auto one = all.begin(); one != all.end(); ++one)
    TG_CHECK(std::find(all.begin(), one, *one) == one, value,
             "[bench_fragmented] '{}' comes twice. Name each size, batch, number of fragments, step and run once.",
             one->name());
}
void check_memory(const FragmentedCell& cell, StepWay step, const FragmentedSetup& setup) {
  const auto bytes = [=](int64_t batch) {
    FragmentedCell with = cell;
    with.batch = batch;
    return planned_bytes(with, step, setup).all;
  };
  std::vector<Variant> others;
  if (step == StepWay::separate)
    others.push_back({"--step folded", [=] { return planned_bytes(cell, StepWay::folded, setup).all; }});
  check_fits("[bench_fragmented] " + cell.name(), cell.batch, bytes, others, setup.device);
}
}  // namespace

std::string_view name_of(CellMode m) { return kModes[size_t(m)]; }
std::string_view name_of(StepWay s) { return kSteps[size_t(s)]; }
std::string FragmentedVariant::name() const { return fmt::format("{}, {}", name_of(step), name_of(run)); }

int64_t FragmentedCell::parameters() const {
  return size * size + size + (mode == CellMode::linear ? 0 : 2 * size * (size / 32));
}
std::string FragmentedCell::name() const {
  return fmt::format("{}, batch {}, {}", size, batch, name_of(mode)) +
         (fragments > 0 ? fmt::format(", {} fragments", fragments) : "");
}

std::vector<FragmentedCell> fragmented_grid() {
  FragmentedFlags f;
  f.sizes.assign(std::begin(kSizes), std::end(kSizes));
  return cells_of(f);
}
FragmentedPlan fragmented_plan(const FragmentedFlags& flags) {
  FragmentedFlags f = flags;
  const Device device = Device::parse(f.device);
  const bool full = f.full || device != Device::cpu();
  if (f.sizes.empty()) f.sizes.assign(std::begin(kSizes), full ? std::end(kSizes) : std::begin(kSizes) + 1);
  check_words(f);
  FragmentedPlan plan{.setup = {.warmup = f.warmup.value_or(full ? 10 : 2),
                                .steps = f.steps.value_or(full ? 100 : 5),
                                .seed = uint64_t(f.seed),
                                .device = device},
                      .cells = cells_of(f),
                      .variants = {}};
  check_within(kProgram, "warmup", plan.setup.warmup, 1, kMostSteps);
  check_within(kProgram, "steps", plan.setup.steps, 1, kMostSteps);
  check_within(kProgram, "seed", f.seed, 0, INT64_MAX);
  check_within(kProgram, "threads", f.threads, 0, INT32_MAX);
  for (const std::string& run : f.run)
    for (const std::string& step : f.step)
      plan.variants.push_back({StepWay(known_place("step", step, kSteps)), RunMode(known_place("run", run, kRuns))});
  check_once(plan.cells), check_once(plan.variants);
  for (const FragmentedVariant& variant : plan.variants)
    for (const FragmentedCell& cell : plan.cells) check_memory(cell, variant.step, plan.setup);
  return plan;
}

}  // namespace tg::bench
