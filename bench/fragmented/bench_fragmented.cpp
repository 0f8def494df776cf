#include <optional>

#include "fragmented/fragmented.h"

using namespace tg;
using namespace tg::bench;
namespace {
std::vector<FragmentedRow> measured_group(std::span<const FragmentedCell> cells, FragmentedVariant variant,
                                          const FragmentedSetup& setup) {
  std::vector<FragmentedRow> rows;
  std::optional<FragmentedModel> model;
  for (const FragmentedCell& cell : cells) {
    if (rows.empty() || !rows.back().cell.same_model(cell)) model.reset(), model.emplace(cell, setup);
    rows.push_back({cell, variant, measured_cell(*model, cell, variant, setup)});
  }
  return rows;
}
int measured(const FragmentedFlags& f, int argc, char** argv) {
  const FragmentedPlan plan = fragmented_plan(f);
  const FragmentedSetup& setup = plan.setup;
  const std::string how =
      fmt::format("; f32, TF32 off, {} timed steps after {} untimed ones", setup.steps, setup.warmup);
  FragmentedReport report{begin(f, argc, argv, how), setup};
  if (!f.full && f.sizes.empty() && setup.device == Device::cpu())
    fmt::print("A smaller grid than the document's, as this is a CPU; --full is the document's.\n");
  for (auto at = plan.cells.begin(), end = at; at != plan.cells.end(); at = end) {
    while (end != plan.cells.end() && end->size == at->size && end->batch == at->batch) ++end;
    const size_t before = report.rows.size();
    for (const FragmentedVariant& variant : plan.variants) {
      const std::vector<FragmentedRow> rows = measured_group({at, end}, variant, setup);
      fmt::print("\nStep: {}\n{}", variant.name(), document_text(rows));
      std::fflush(stdout);
      report.rows.insert(report.rows.end(), rows.begin(), rows.end());
    }
    fmt::print("\n{}", memory_table({report.rows.begin() + ptrdiff_t(before), report.rows.end()}));
  }
  if (f.against_document)
    fmt::print("\n{}",
               compare_with_document(report.rows, fmt::format("{}, means of {}", report.machine.device, setup.steps)));
  write_fragmented_json(f.json, report);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, FragmentedFlags& f) {
    c.toggle("--full", "the document's three sizes, 10 and 100 steps on a CPU too, in place of 2048, 2 and 5", f.full);
    c.option("--sizes", "of the layer, in and out, such as 2048,4096", f.sizes);
    c.option("--batches", "rows of x", f.batches);
    c.option("--fragments", "of the input; each size is a multiple of each", f.fragments);
    declare_names(c, "--modes", "a list of linear, train and inference; train selects softly, inference hard", f.modes);
    declare_names(c, "--step", "a list of separate and folded: gradients stored, or folded into the optimiser's pass",
                  f.step);
    declare_names(c, "--run", "a list of eager and compiled", f.run);
    c.option("--warmup", "untimed steps", f.warmup, 10);
    c.option("--steps", "timed steps", f.steps, 100);
    c.option("--seed", "of the layer and of the data, N(0, 1)", f.seed);
  };
  return run_benchmark<FragmentedFlags>(
      argc, argv, "bench_fragmented",
      "Document 002's benchmark of fragmented layers: forward passes and steps of Adam next to "
      "those of a linear layer, and their memory. Run it on a quiet machine.",
      kThreads | kCpuTime | kDocument | kQuick, declare, measured);
}
