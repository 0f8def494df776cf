// Ops and engine, each beside what this machine can do: GFLOP/s beside multiply-adds on registers (16-bit products are
// computed in f32, and so is their peak), GB/s beside copies of as many bytes, ns per emitted op. Run on a quiet
// machine; compare shares of the peak, not figures of two machines.
#include "emit_rows.h"
#include "flags.h"
#include "op_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/registry.h>

using namespace tg;
using namespace tg::bench;
namespace {
Result measured(const OpRow& row, const Flags& flags, Peaks& peaks) {
  const MeasureOptions options =
      flags.quick ? MeasureOptions{.warmup = 0, .min_seconds = 0, .min_runs = 1}
                  : MeasureOptions{.warmup = flags.seconds / 3, .min_seconds = flags.seconds, .min_runs = 9};
  const Timing t = measure(row.make(), options);
  if (row.bytes > 0) {
    const Bandwidth b = peaks.bandwidth(row.bytes);
    return rate(row.id, "GB/s", 1e-9 * row.bytes, t, row.in_place ? b.update : b.best());
  }
  return rate(row.id, "GFLOP/s", 1e-9 * row.flop, t, peaks.gflops(dtype_from_name(row.id.dtype)));
}
bool small(const OpRow& row) { return row.flop < 3e8 && row.bytes < 3e7; }

std::vector<Result> measure_all(const Flags& flags, Peaks& peaks) {
  std::vector<Result> results;
  const auto wanted = [&](const RowId& id) { return id.text().find(flags.filter) != std::string::npos; };
  const auto take = [&](Result r) {
    if (results.empty()) print_header();
    print(r);
    results.push_back(std::move(r));
  };
  for (Result& r : emit_rows(wanted, flags.quick ? EmitOptions{.ops = 100, .rounds = 1} : EmitOptions{}))
    take(std::move(r));
  for (const OpRow& row : op_rows())
    if (wanted(row.id) && (!flags.quick || small(row))) take(measured(row, flags, peaks));
  TG_CHECK(!results.empty(), value, "[bench_ops] no row has '{}' in its text. Without --filter all are listed.",
           flags.filter);
  return results;
}
void print_peaks(Peaks& peaks) {
  fmt::print("peaks: {:.1f} GFLOP/s f32, {:.1f} f64, on registers\n", peaks.gflops(DType::f32),
             peaks.gflops(DType::f64));
  for (const auto& [bytes, b] : peaks.bandwidths())
    fmt::print("  {:>8} KiB: copy {:>6.1f}, triad {:>6.1f}, update {:>6.1f} GB/s\n", bytes / 1024, b.copy, b.triad,
               b.update);
}
}  // namespace

int main(int argc, char** argv) try {
  int status = 0;
  const auto flags = parse_flags(argc, argv, status);
  if (!flags) return status;
  if (flags->cpu_time) set_num_threads(1), use_cpu_time();
  const Machine m = machine();
  fmt::print("{}, {} cpu(s), {}, {}{}\n", m.cpu, m.cpus, m.backend, m.compiler,
             flags->cpu_time ? ", processor time" : "");
  Peaks peaks(flags->quick ? 0 : flags->seconds);
  const auto results = measure_all(*flags, peaks);
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
