// Document 002's benchmark: forward passes and training steps of a linear layer and of fragmented ones, over sizes,
// batches and fragments, with the document's text and memory peaks. CPU and CUDA.
#include <fmt/format.h>

#include <optional>

#include "fragmented/report.h"

using namespace tg;
using namespace tg::bench;
namespace {
// The end of the cells from `begin` with equal size and batch.
size_t end_of_group(const std::vector<FragmentedCell>& cells, size_t begin) {
  size_t end = begin;
  while (end < cells.size() && cells[end].size == cells[begin].size && cells[end].batch == cells[begin].batch) ++end;
  return end;
}
std::vector<FragmentedRow> measured_group(std::span<const FragmentedCell> cells, FragmentedVariant variant,
                                          const FragmentedSetup& setup) {
  std::vector<FragmentedRow> rows;
  std::optional<FragmentedModel> model;
  const FragmentedCell* of = nullptr;
  for (const FragmentedCell& cell : cells) {
    if (!of || !of->same_model(cell)) model.reset(), model.emplace(cell, setup);
    of = &cell;
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
  for (size_t at = 0; at < plan.cells.size();) {
    const size_t end = end_of_group(plan.cells, at);
    const size_t before = report.rows.size();
    for (const FragmentedVariant& variant : plan.variants) {
      const std::vector<FragmentedRow> rows =
          measured_group(std::span(plan.cells).subspan(at, end - at), variant, setup);
      fmt::print("\nStep: {}\n{}", variant.name(), document_text(rows));
      std::fflush(stdout);
      report.rows.insert(report.rows.end(), rows.begin(), rows.end());
    }
    fmt::print("\n{}", memory_table({report.rows.begin() + ptrdiff_t(before), report.rows.end()}));
    at = end;
  }
  if (f.against_document)
    fmt::print("\n{}",
               compare_with_document(report.rows, fmt::format("{}, means of {}", report.machine.device, setup.steps)));
  if (!f.json.empty()) write_fragmented_json(f.json, report);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  FragmentedFlags f;
  const auto declare = [&](Command& c) {
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
    declare_threads(c, f);
    declare_cpu_time(c, f);
    declare_document(c, f);
    declare_results(c, f);
    return [&] { return measured(f, argc, argv); };
  };
  return apps::run_program(argc, argv,
                           {"bench_fragmented",
                            "Document 002's benchmark of fragmented layers: forward passes and steps of Adam next to "
                            "those of a linear layer, and their memory. Run it on a quiet machine.",
                            declare});
}
