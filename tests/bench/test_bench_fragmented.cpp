// bench_fragmented: its cells, the document's figures, memory formulas, files.

#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cmath>

#include "../bench/fragmented/fragmented.h"

#include "support/check_json.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
constexpr double kMiB = 1 << 20;
constexpr FragmentedCell kTinyCell{.size = 64, .batch = 3, .mode = CellMode::train, .fragments = 4};
constexpr FragmentedSetup kShort{.warmup = 1, .steps = 2, .seed = 3};
constexpr StepWay kBothSteps[] = {StepWay::separate, StepWay::folded};

FragmentedCell with(FragmentedCell cell, CellMode mode) {
  cell.mode = mode, cell.fragments = mode == CellMode::linear ? 0 : cell.fragments;
  return cell;
}
std::string plan_error(const std::function<void(FragmentedFlags&)>& spoil) {
  return error_of([&] { fragmented_plan(changed(FragmentedFlags(), spoil)); });
}
FragmentedRow row(FragmentedCell cell, double forward, double backward, int64_t live) {
  return {cell, {}, {.forward_ms = forward, .backward_ms = backward, .live_bytes = live, .reserved_bytes = 2 * live}};
}
int64_t real_peak(const FragmentedCell& cell, FragmentedVariant variant) {
  const int64_t before = memory_stats().live;
  const FragmentedModel model(cell, kShort);
  return measured_cell(model, cell, variant, kShort).live_bytes - before;
}
// Tensors of the size of x: x, target, y, its gradient; fragmented also weighted x, the rest of x, and their gradients.
// A folded step keeps the gradients' operands until backward ends.
int64_t step_limit(const FragmentedCell& c, StepWay step) {
  constexpr int64_t kSmall = 1 << 10;
  const bool linear = c.mode == CellMode::linear;
  const int64_t stored = stored_bytes(c) + (linear ? 4 : 7) * 4 * c.batch * c.size;
  const int64_t folded = folded_bytes(c) + (linear ? 5 : 11) * 4 * c.batch * c.size;
  return (step == StepWay::separate ? stored : folded) + kSmall;
}
struct Limit {
  int64_t size;
  double linear, fragmented;
};
constexpr Limit kSeparate[] = {{2048, 64.5, 69}, {4096, 256.5, 273}, {8192, 1025, 1090}};
constexpr Limit kFolded[] = {{2048, 49, 52}, {4096, 193, 205}, {8192, 769, 818}};
}  // namespace

TEST_CASE("fragmented: the document's 81 cells and their numbers of parameters") {
  const std::vector<FragmentedCell> grid = fragmented_grid();
  REQUIRE(grid.size() == 81);
  for (const FragmentedCell& c : grid) {
    CHECK(std::ranges::count(grid, c) == 1);
    CHECK(fragmented_figure(c));
  }
  CHECK(grid[0] == FragmentedCell{2048, 1});
  CHECK(grid[1] == FragmentedCell{2048, 1, CellMode::train, 2});
  CHECK(grid[2] == FragmentedCell{2048, 1, CellMode::inference, 2});
  CHECK(grid[80] == FragmentedCell{8192, 16, CellMode::inference, 128});
  CHECK(grid[2].same_model(grid[1]));
  CHECK(!grid[3].same_model(grid[1]));
  CHECK(grid[1].name() == "2048, batch 1, train, 2 fragments");
  constexpr int64_t kCounts[][3] = {{2048, 4196352, 4458496}, {4096, 16781312, 17829888}, {8192, 67117056, 71311360}};
  for (const auto& [size, linear, fragmented] : kCounts) {
    CHECK(FragmentedCell{size}.parameters() == linear);
    CHECK(FragmentedCell{size, 1, CellMode::train, 32}.parameters() == fragmented);
  }
  for (const CellMode mode : {CellMode::linear, CellMode::train, CellMode::inference})
    CHECK(FragmentedModel(with(kTinyCell, mode), kShort).params().numel() == with(kTinyCell, mode).parameters());
  CHECK(!fragmented_figure(kTinyCell));
  CHECK(!fragmented_figure({2048, 2}));
}

TEST_CASE("fragmented: figures as the document prints them") {
  const auto figure = [](const FragmentedCell& c) {
    const Json& f = *fragmented_figure(c);
    return std::vector{number_of(f, "forward_ms"), number_of(f, "backward_ms"), number_of(f, "peak_mib")};
  };
  CHECK(figure({2048, 1}) == std::vector{0.12, 1.00, 96.3});
  CHECK(figure({2048, 16, CellMode::train, 128}) == std::vector{0.87, 1.73, 149.1});
  CHECK(figure({4096, 8, CellMode::inference, 2}) == std::vector{1.52, 3.56, 673.4});
  CHECK(figure({8192, 16, CellMode::inference, 2}) == std::vector{9.19, 18.00, 3668.8});
  CHECK(figure({8192, 16, CellMode::inference, 128}) == std::vector{0.70, 7.52, 1891.4});
}

TEST_CASE("fragmented: the formula gives the document's 81 peaks") {
  for (const FragmentedCell& c : fragmented_grid()) {
    CAPTURE(c.name());
    CHECK(std::abs(document_bytes(c) / kMiB - number_of(*fragmented_figure(c), "peak_mib")) <= 0.37);
    CHECK(folded_bytes(c) < stored_bytes(c));
    CHECK(double(stored_bytes(c)) < fair_bytes(c));
    const double linear = 2 * 4.0 * double(FragmentedCell{c.size}.parameters());
    CHECK(document_bytes(c) - fair_bytes(c) == (c.mode == CellMode::linear ? 0 : linear));
  }
  CHECK(fair_bytes({2048, 1, CellMode::train, 2}) / kMiB == Approx(101.3).epsilon(0.001));
  CHECK(fair_bytes({8192, 1, CellMode::train, 2}) / kMiB == Approx(1376.5).epsilon(0.001));
  CHECK(double(stored_bytes({4096, 1, CellMode::inference, 8})) / kMiB == Approx(272.1).epsilon(0.001));
  CHECK(double(folded_bytes({2048, 1})) / kMiB == Approx(48.0).epsilon(0.001));
}

TEST_CASE("fragmented: what a step takes, of all 81 cells and both steps") {
  for (const FragmentedCell& c : fragmented_grid())
    for (const StepWay step : kBothSteps) {
      CAPTURE_ALL(c.name(), name_of(step));
      const PlannedBytes planned = planned_bytes(c, step, kShort);
      CHECK(planned.step <= step_limit(c, step));
      CHECK(planned.step > (step == StepWay::separate ? stored_bytes(c) : folded_bytes(c)));
      CHECK(planned.all >= planned.step);
      CHECK(planned.all <= step_limit(c, step) + 4 * c.batch * c.size);  // making the layer takes no more
      if (c.batch > 1) continue;
      for (const Limit& limit : step == StepWay::separate ? kSeparate : kFolded)
        if (limit.size == c.size)
          CHECK(double(planned.step) / kMiB <= (c.mode == CellMode::linear ? limit.linear : limit.fragmented));
    }
}

TEST_CASE("fragmented: real steps take what was planned, those of the smallest size") {
  for (const int64_t batch : {1, 16})
    for (const int64_t fragments : batch == 1 ? std::vector<int64_t>{2, 8, 32, 128} : std::vector<int64_t>{2, 128})
      for (const CellMode mode : {CellMode::linear, CellMode::train, CellMode::inference}) {
        if (mode == CellMode::linear && fragments > 2) continue;
        const FragmentedCell c = with({2048, batch, mode, fragments}, mode);
        for (const StepWay step : kBothSteps) {
          CAPTURE_ALL(c.name(), name_of(step));
          const int64_t peak = real_peak(c, {.step = step});
          CHECK(peak <= step_limit(c, step));
          CHECK(peak == Approx(double(planned_bytes(c, step, kShort).step)).epsilon(1e-4));
        }
      }
}

TEST_CASE("fragmented: all variants train alike") {
  for (const CellMode mode : {CellMode::linear, CellMode::train, CellMode::inference}) {
    const FragmentedCell c = with(kTinyCell, mode);
    CAPTURE(c.name());
    std::vector<std::vector<float>> weights;
    for (const RunMode run : {RunMode::eager, RunMode::compiled})
      for (const StepWay step : kBothSteps) {
        const FragmentedModel model(c, kShort);
        FragmentedSteps steps(model, mode, {step, run}, kShort.device);
        steps.run_first();
        const double first = steps.loss();
        for (int i = 0; i < 40; ++i) {
          const auto [forward, backward] = steps.run();
          CHECK(forward > 0);
          CHECK(forward + backward > 0);
        }
        CHECK(steps.loss() < first);
        weights.push_back({});
        for (const Parameter& p : model.params().all())
          for (const float w : p.tensor.to_vector<float>()) weights.back().push_back(w);
        CHECK(weights.back() == weights.front());
      }
  }
}

TEST_CASE("fragmented: inference goes on with the layer of train, and a step that moves too much is an error") {
  const FragmentedModel model(kTinyCell, kShort);
  const FragmentedResult train = measured_cell(model, kTinyCell, {}, {.warmup = 5, .steps = 20, .seed = 3});
  CHECK(train.last_loss < train.first_loss);
  const FragmentedResult inference = measured_cell(model, with(kTinyCell, CellMode::inference), {}, kShort);
  const FragmentedModel fresh(kTinyCell, kShort);
  const FragmentedResult cold = measured_cell(fresh, with(kTinyCell, CellMode::inference), {}, kShort);
  CHECK(inference.first_loss != cold.first_loss);
  CHECK(cold.live_bytes > stored_bytes(kTinyCell));
  CHECK(cold.reserved_bytes >= cold.live_bytes / 2);
  FragmentedModel broken(with(kTinyCell, CellMode::linear), kShort);
  broken.params().all()[1].tensor.assign(full({64}, 1e6));  // one unit in the last place is more than the rate
  FragmentedSteps steps(broken, CellMode::linear, {}, {});
  CHECK_SAYS(steps.run_first(), "[bench_fragmented] the first step of Adam moves ");
}

TEST_CASE("fragmented: cells and protocol by default, and those that flags choose") {
  const FragmentedPlan plan = fragmented_plan({});
  CHECK(plan.cells.size() == 27);
  CHECK(plan.cells[26] == FragmentedCell{2048, 16, CellMode::inference, 128});
  CHECK(plan.setup.warmup == 2);
  CHECK(plan.setup.steps == 5);
  CHECK(plan.variants == std::vector<FragmentedVariant>{{StepWay::separate}, {StepWay::folded}});
  FragmentedFlags f;
  f.full = true, f.batches = {1}, f.step = {StepWay::folded}, f.run = {RunMode::eager, RunMode::compiled}, f.steps = 7;
  const FragmentedPlan full = fragmented_plan(f);
  CHECK(full.cells.size() == 27);
  CHECK(full.cells[26].size == 8192);
  CHECK(full.setup.warmup == 10);
  CHECK(full.setup.steps == 7);
  REQUIRE(full.variants.size() == 2);
  CHECK(full.variants[1].name() == "folded, compiled");
  f = {};
  f.sizes = {96}, f.batches = {5}, f.fragments = {3}, f.modes = {CellMode::inference};
  CHECK(fragmented_plan(f).cells == std::vector{FragmentedCell{96, 5, CellMode::inference, 3}});
}

TEST_CASE("fragmented: flags that are wrong are errors") {
  using Flags = FragmentedFlags;
  CHECK_HAS(plan_error([](Flags& f) { f.batches = {0}; }), "[bench_fragmented] --batches is 0. It must be from 1 to ");
  CHECK_HAS(plan_error([](Flags& f) { f.fragments = {0}; }), "--fragments is 0.");
  CHECK_HAS(plan_error([](Flags& f) { f.sizes = {100}, f.fragments = {8}; }),
            "[bench_fragmented] --sizes 100 cannot be split into --fragments 8. Each size must be a multiple");
  CHECK_HAS(plan_error([](Flags& f) { f.sizes = {31}; }), "--sizes is 31. It must be from 32 to ");
  CHECK_HAS(plan_error([](Flags& f) { f.steps = 0; }), "--steps is 0.");
  CHECK_HAS(plan_error([](Flags& f) { f.warmup = 0; }), "--warmup is 0.");
  CHECK_HAS(plan_error([](Flags& f) { f.device = "abacus"; }), "abacus");
  CHECK_HAS(plan_error([](Flags& f) { f.batches = {8, 8}; }), "'2048, batch 8, linear' comes twice.");
  CHECK_HAS(plan_error([](Flags& f) { f.step = {StepWay::folded, StepWay::folded}; }), "'folded, eager' comes twice.");
  const std::string large = plan_error([](Flags& f) { f.sizes = {131072}, f.batches = {1 << 20}; });
  CHECK_HAS(large, "[bench_fragmented] 131072, batch 1048576, linear takes ", " too little.");
}

TEST_CASE("fragmented: the text is the document's") {
  const FragmentedCell linear{2048, 1}, train{2048, 1, CellMode::train, 2}, inference{2048, 1, CellMode::inference, 2};
  const auto bytes = [](double mib) { return int64_t(std::lround(mib * kMiB)); };
  const std::vector<FragmentedRow> rows{row(linear, 0.12, 1, bytes(96.3)), row(train, 0.55, 1.55, bytes(133.4)),
                                        row(inference, 0.68, 1.18, bytes(133.3))};
  CHECK(document_text(rows) ==
        "Benchmarking with input_size=2048, output_size=2048, batch_size=1\n\nDetailed Results:\nLinear Layer:\n"
        "  Forward time: 0.12ms\n  Backward time: 1.00ms\n  Peak memory: 96.3MB\n  Parameters: 4196352\n\n"
        "FragmentedLinear (Train) Results:\n\nFragments: 2\n"
        "  Forward time: 0.55ms\n  Backward time: 1.55ms\n  Peak memory: 133.4MB\n  Parameters: 4458496\n\n"
        "FragmentedLinear (Inference) Results:\n\nFragments: 2\n"
        "  Forward time: 0.68ms\n  Backward time: 1.18ms\n  Peak memory: 133.3MB\n  Parameters: 4458496\n");
  CHECK(!has(document_text({rows[2]}), "Train"));
  const std::string memory = memory_table(rows);
  CHECK_HAS(memory, "live  reserved  document   fair   4 P   3 P\n",
            "2048, batch 1, train, 2 fragments      separate, eager  133.4     266.8     133.4  101.3  68.0  51.0");
  const std::string beside = compare_with_document({rows[1], row(kTinyCell, 1, 1, 1)}, "a machine");
  CHECK_HAS(beside, "Ours: a machine.", "0.55      1.55  133.4              0.55      1.55  133.4             100 %");
  CHECK_HAS(beside, "document 002: 1. It has sizes 2048, ");
  CHECK_HAS(compare_with_document({row(kTinyCell, 1, 2.5, 1)}, "a machine"), "document 002: 1. It has sizes 2048, ",
            "64, batch 3, train, 4 fragments  separate, eager                 2.50        1.65 to 11.14\n");
}

TEST_CASE("fragmented: the JSON file has all cells") {
  const Folder folder;
  FragmentedReport report{{machine(), "wall", "here", "bench"}, kShort};
  report.rows = {row({2048, 1}, 1, 2, 3), row(kTinyCell, 4, 5, 6)};
  const std::string path = folder / "cells.json";
  write_fragmented_json(path, report);
  const auto j = detail::own_json(read_file(path));
  check_json(j, R"({"steps": 2, "cells": [{"document": {"peak_mib": 96.3}, "fragments": null},
                                          {"document": null, "mode": "train"}]})");
  CHECK(j["cells"][1]["stored_bytes"] == stored_bytes(kTinyCell));
}
