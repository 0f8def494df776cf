#include <tapegrad/core/check.h>

#include <algorithm>

#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
constexpr std::string_view kProgram = "bench_fragmented";
constexpr int64_t kSizes[] = {2048, 4096, 8192};
constexpr int64_t kLeastSize = 32, kMostSize = 131072;  // the low-rank path is size / 32 wide
constexpr int64_t kMostBatch = 1 << 20, kMostSteps = 1'000'000;

bool has_mode(const FragmentedFlags& f, CellMode mode) { return std::ranges::find(f.modes, mode) != f.modes.end(); }
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
void check_sizes(const FragmentedFlags& f) {
  for (const int64_t size : f.sizes) check_within(kProgram, "sizes", size, kLeastSize, kMostSize);
  for (const int64_t batch : f.batches) check_within(kProgram, "batches", batch, 1, kMostBatch);
  const bool fragmented = has_mode(f, CellMode::train) || has_mode(f, CellMode::inference);
  for (const int64_t fragments : f.fragments) {
    check_within(kProgram, "fragments", fragments, 1, kMostSize);
    for (const int64_t size : f.sizes)
      TG_CHECK(!fragmented || size % fragments == 0, value,
               "[bench_fragmented] --sizes {} cannot be split into --fragments {}. Each size must be a multiple of "
               "each number of fragments, such as 2048 of 8.",
               size, fragments);
  }
}
void check_memory(const FragmentedCell& cell, StepWay step, const FragmentedSetup& setup) {
  const auto bytes = [=](const FragmentedCell& with) { return planned_bytes(with, step, setup).all; };
  std::vector<Variant> others;
  if (step == StepWay::separate)
    others.push_back({"--step folded", [=] { return planned_bytes(cell, StepWay::folded, setup).all; }});
  check_setup_fits("[bench_fragmented] " + cell.name(), cell, bytes, others, setup.device);
}

constexpr double kMiB = 1 << 20;
constexpr double kWorkspaces = 16.25 * kMiB;  // cuBLAS workspaces of forward and backward

double float_bytes(double elements) { return 4 * elements; }
double linear_bytes(int64_t size) { return float_bytes(double(size * size + size)); }
}  // namespace

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
  if (f.quick) f.sizes = {128}, f.warmup = f.steps = 1;
  const Device device = Device::parse(f.device);
  const bool full = f.full || device != Device::cpu();
  if (f.sizes.empty()) f.sizes.assign(std::begin(kSizes), full ? std::end(kSizes) : std::begin(kSizes) + 1);
  check_sizes(f);
  FragmentedPlan plan{.setup = {.warmup = f.warmup.value_or(full ? 10 : 2),
                                .steps = f.steps.value_or(full ? 100 : 5),
                                .seed = f.seed,
                                .device = device},
                      .cells = cells_of(f),
                      .variants = {}};
  check_within(kProgram, "warmup", plan.setup.warmup, 1, kMostSteps);
  check_within(kProgram, "steps", plan.setup.steps, 1, kMostSteps);
  for (const RunMode run : f.run)
    for (const StepWay step : f.step) plan.variants.push_back({step, run});
  check_once(kProgram, plan.cells, &FragmentedCell::name);
  check_once(kProgram, plan.variants, &FragmentedVariant::name);
  for (const FragmentedVariant& variant : plan.variants)
    for (const FragmentedCell& cell : plan.cells) check_memory(cell, variant.step, plan.setup);
  return plan;
}

const Json* fragmented_figure(const FragmentedCell& c) {
  return document_row("fragmented",
                      {{"size", c.size}, {"batch", c.batch}, {"mode", name_of(c.mode)}, {"fragments", c.fragments}});
}

// Weights, gradients, moments and the optimiser's square roots: 5 x the parameters; data and results: 4 x the rows.
// Soft selection computes all fragments, hard selection copies a matrix per row; the layer keeps a mapping and masks.
double fair_bytes(const FragmentedCell& c) {
  const double parameters = float_bytes(double(c.parameters())), rows = float_bytes(double(c.batch * c.size));
  const double in_update = 5 * parameters + 4 * rows;
  if (c.mode == CellMode::linear) return kWorkspaces + in_update;
  const double masks = double(c.fragments * c.size + 8 * c.size);
  const double copies = double(c.batch) * float_bytes(double(c.size * c.size)) / double(c.fragments);
  const double in_backward =
      4 * parameters + (c.mode == CellMode::train ? 2 * double(c.fragments) * rows + 5 * rows : copies + 9 * rows);
  return kWorkspaces + std::max(in_update, in_backward) + masks;
}
double document_bytes(const FragmentedCell& c) {
  return fair_bytes(c) + (c.mode == CellMode::linear ? 0 : 2 * linear_bytes(c.size));
}
int64_t stored_bytes(const FragmentedCell& c) { return 4 * 4 * c.parameters(); }
int64_t folded_bytes(const FragmentedCell& c) { return 3 * 4 * c.parameters(); }

}  // namespace tg::bench
