// Ops, engine and, on a GPU, whole models, each beside what this machine can do: GFLOP/s beside multiply-adds on
// registers (on a GPU the library's largest product), GB/s beside copies of as many bytes, ns per emitted op, ms per
// step. Run on a quiet machine; compare shares of the peak, not figures of two machines.
#include "common/device_peak.h"
#include "common/flags.h"
#include "ops/emit_rows.h"
#include "ops/gpt_rows.h"
#include "ops/op_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/file.h>
#include <tapegrad/core/registry.h>

using namespace tg;
using namespace tg::bench;
namespace {
MeasureOptions options(const Flags& flags, int runs) {
  if (flags.quick) return {.warmup = 0, .min_seconds = 0, .min_runs = 1};
  return {.warmup = flags.seconds / 3, .min_seconds = flags.seconds, .min_runs = runs};
}
Result measured(const OpRow& row, const Flags& flags, Device device, Peaks& peaks) {
  auto run = row.make();
  int repeats = 1;
  if (device != Device::cpu()) {
    if (!flags.quick) repeats = repeats_for(run, device, 0.005);
    run = batched(std::move(run), device, repeats);
  }
  const Timing t = measure(run, options(flags, 9));
  if (row.bytes > 0) {
    const Bandwidth b = peaks.bandwidth(row.bytes);
    return rate(row.id, "GB/s", 1e-9 * row.bytes, t, row.in_place ? b.update : b.best(), repeats);
  }
  return rate(row.id, "GFLOP/s", 1e-9 * row.flop, t, peaks.gflops(row.id.dtype), repeats);
}
bool small(const OpRow& row) { return row.flop < 3e8 && row.bytes < 3e7; }

std::vector<Result> measure_all(const Flags& flags, Device device, Peaks& peaks) {
  std::vector<Result> results;
  const auto wanted = [&](const RowId& id) { return id.text().find(flags.filter) != std::string::npos; };
  const auto take = [&](Result r) {
    if (results.empty()) print_header();
    print(r);
    results.push_back(std::move(r));
  };
  if (device == Device::cpu())  // the engine runs on the host
    for (Result& r : emit_rows(wanted, flags.quick ? EmitOptions{.ops = 100, .rounds = 1} : EmitOptions{}))
      take(std::move(r));
  for (const OpRow& row : op_rows(device))
    if (wanted(row.id) && (!flags.quick || small(row))) take(measured(row, flags, device, peaks));
  if (device != Device::cpu() && !flags.quick)
    for (const GptRow& row : gpt_rows(device))
      if (wanted(row.id)) take(milliseconds(row.id, measure(row.make(), options(flags, 9))));
  TG_CHECK(!results.empty(), value, "[bench_ops] no row has '{}' in its text. Without --filter all are listed.",
           flags.filter);
  return results;
}
void print_peaks(Peaks& peaks) {
  fmt::print("peaks:");
  for (const auto& [operands, gflops] : peaks.products()) fmt::print(" {:.1f} GFLOP/s {}", gflops, operands);
  fmt::print("\n");
  for (const auto& [bytes, b] : peaks.bandwidths())
    fmt::print("  {:>8} KiB: copy {:>6.1f}, triad {:>6.1f}, update {:>6.1f} GB/s\n", bytes / 1024, b.copy, b.triad,
               b.update);
}
}  // namespace

int main(int argc, char** argv) try {
  int status = 0;
  const auto flags = parse_flags(argc, argv, status);
  if (!flags) return status;
  if (!flags->json.empty()) check_writable(flags->json);
  if (flags->cpu_time) set_num_threads(1), use_cpu_time();
  const Device device = Device::parse(flags->device);
  const Machine m = machine(device);
  fmt::print("{}, {} cpu(s), {}: {}, {}{}\n", m.cpu, m.cpus, m.device, m.backend, m.compiler,
             flags->cpu_time ? ", processor time" : "");
  Peaks peaks(flags->quick ? 0 : flags->seconds, device);
  const auto results = measure_all(*flags, device, peaks);
  print_peaks(peaks);
  if (!flags->json.empty())
    write_json(flags->json,
               {m, flags->commit, flags->cpu_time ? "processor" : "wall",
                fmt::format("{}", fmt::join(argv, argv + argc, " ")), results},
               peaks);
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
