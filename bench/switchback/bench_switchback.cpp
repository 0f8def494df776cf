#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/io/file.h>

#include <optional>

#include "switchback/switchback.h"

using namespace tg;
using namespace tg::bench;
namespace {
constexpr double kPeakSeconds = 0.1;

int measured(const SwitchBackFlags& f, int argc, char** argv) {
  const SwitchBackPlan plan = switchback_plan(f);
  std::optional<AppendFile> objects;
  if (!f.jsonl.empty()) objects.emplace(f.jsonl, AppendFile::Begin::keep);
  const std::string how = fmt::format("; {} ({}), {} calls of each op after {} untimed ones", name_of(plan.setup.dtype),
                                      plan.why, plan.setup.repeat, plan.setup.untimed());
  SwitchBackReport report{begin(f, argc, argv, how), plan.setup, plan.why};
  Peaks peaks(f.quick ? 0 : kPeakSeconds, plan.setup.device);
  report.left_out = plan.left_out;
  double of_flop = 1e-9 / peaks.gflops(std::string(name_of(plan.setup.dtype))), expected = 0;
  for (const SwitchBackShape& shape : plan.rows) expected += plan.seconds(shape, plan.setup.repeat, of_flop);
  if (f.full)
    fmt::print("{} rows take at least {:.1f} h at the peak of this device.\n", plan.rows.size(), expected / 3600);
  const double end = now() + plan.budget;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const SwitchBackShape& shape = plan.rows[i];
    SwitchBackSetup setup = plan.setup;
    const double begin = now(), rest = end - begin;
    if (plan.budget > 0) {
      const auto takes = [&](int64_t repeat) { return plan.seconds(shape, repeat, of_flop); };
      while (setup.repeat > 1 && takes(setup.repeat) * double(plan.rows.size() - i) > rest) setup.repeat /= 2;
      if (takes(setup.repeat) > rest) {
        report.left_out.push_back(fmt::format("{}: one call would take {:.1f} s, and {:.1f} s remain", shape.name(),
                                              takes(1), std::max(rest, 0.0)));
        continue;
      }
    }
    fmt::print("\nrow {} of {}: {}{}\n", i + 1, plan.rows.size(), shape.name(),
               plan.budget > 0 ? fmt::format(", {} calls", setup.repeat) : "");
    std::fflush(stdout);
    const SwitchBackRow row = measured_row(shape, setup, peaks);
    of_flop *= (now() - begin) / plan.seconds(shape, setup.repeat, of_flop);
    fmt::print("{}{}{}", document_lines(row.ms), rate_lines(row, plan.setup), layer_lines(row.layers));
    std::fflush(stdout);
    if (objects) objects->append(document_object(shape, row.repeat, row.ms) + "\n");
    report.rows.push_back(row);
  }
  fmt::print("\n{}\n{}", summary(report.rows), crossover(report.rows));
  for (const std::string& row : report.left_out) fmt::print("left out: {}\n", row);
  const std::string ours = fmt::format("{} on {}, means of {}{}", name_of(plan.setup.dtype), report.machine.device,
                                       plan.budget > 0 ? "at most " : "", plan.setup.repeat);
  if (f.against_document) fmt::print("\n{}", compare_with_document(report.rows, ours));
  write_switchback_json(f.json, report, peaks);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, SwitchBackFlags& f) {
    c.toggle("--full", "the document's 142 rows and 64 calls on a CPU too, in place of dims 1024 and 2048 and 4 calls",
             f.full);
    c.option("--budget", "TIME",
             "90s, 10m or 2h: the document's rows without the whole layer's step, the smallest first, "
             "by fewer calls where the time is short",
             f.budget);
    c.option("--dims", "of x, or of the result where the layer is swapped", f.dims);
    c.option("--wm", "how many times as wide the other side is, such as 4,4.3637", f.wm);
    c.option("--batch", "rows of x", f.batch);
    declare_names(c, "--switch", "a list of False and True; True: the layer back from the wide side", f.swapped);
    c.option("--rows", "only some of the chosen rows, by their indices from 0", f.rows);
    c.option("--repeat", "timed calls of each op; half as many before them are not timed", f.repeat, 64);
    c.option("--dtype", "f32, bf16 or auto: bf16 where the device has instructions for its products", f.dtype,
             {"auto", "f32", "bf16"});
    c.option("--seed", "of the data, N(0, 1)", f.seed);
    c.toggle("--parts-only", "without the whole layer's step", f.parts_only);
    c.option("--jsonl", "FILE", "append one object with the document's keys for each row", f.jsonl);
  };
  return run_benchmark<SwitchBackFlags>(argc, argv, "bench_switchback",
                                        "Document 001's benchmark of SwitchBack: a linear layer in 8-bit integers next "
                                        "to one in full precision, op by op and as a whole. Run it on a quiet machine.",
                                        kThreads | kCpuTime | kDocument | kQuick, declare, measured);
}
