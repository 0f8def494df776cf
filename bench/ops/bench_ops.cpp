// Compare shares of the peak, not rates of two machines.
#include "common/peak.h"
#include "common/program.h"
#include "ops/op_rows.h"

#include <fmt/ranges.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>

using namespace tg;
using namespace tg::bench;
std::string RowId::text() const {
  return fmt::format("{}{}{}{}{}", name, shape.empty() ? "" : " ", fmt::join(shape, "x"), dtype.empty() ? "" : " ",
                     dtype);
}
namespace {
struct Flags : SharedFlags {
  double seconds = 0.3;
  std::string machine;
};
MeasureOptions options(const Flags& flags) {
  if (flags.quick) return {.warmup = 0, .min_seconds = 0, .min_runs = 1};
  return {.warmup = flags.seconds / 3, .min_seconds = flags.seconds, .min_runs = 9};
}
// `work`: 1e9 units per call; a timed run makes `repeats` calls.
Result rate(RowId id, std::string unit, double work, const Timing& t, double peak, int repeats) {
  const double all = work * repeats;
  return {std::move(id), std::move(unit), all / t.median, all / t.p90, all / t.p10, peak, t.median / repeats, t.runs};
}
Result measured(const OpRow& row, const Flags& flags, Device device, Peaks& peaks) {
  auto run = row.make();
  int repeats = 1;
  if (device != Device::cpu()) {
    if (!flags.quick) repeats = repeats_for(run, device, 0.005);
    run = batched(std::move(run), device, repeats);
  }
  const Timing t = measure(run, options(flags));
  if (row.bytes > 0) {
    const Bandwidth b = peaks.bandwidth(row.bytes);
    const double peak = row.moves == OpRow::Moves::reads      ? b.read
                        : row.moves == OpRow::Moves::in_place ? b.update
                                                              : b.best();
    return rate(row.id, "GB/s", 1e-9 * row.bytes, t, peak, repeats);
  }
  return rate(row.id, "GFLOP/s", 1e-9 * row.flop, t, peaks.gflops(row.id.dtype), repeats);
}
bool small(const OpRow& row) { return row.flop < 3e8 && row.bytes < 3e7; }

void print(const Result& r) {
  fmt::print("{:<44} {:>8} {:>9.1f} {:>9.1f} {:>9.1f}", r.id.text(), r.unit, r.median, r.p10, r.p90);
  if (r.peak > 0) fmt::print(" {:>9.1f} {:>5.0f}", r.peak, 100 * r.median / r.peak);
  fmt::print("\n");
  std::fflush(stdout);
}
std::vector<Result> measure_all(const Flags& flags, Device device, Peaks& peaks) {
  std::vector<Result> results;
  const auto wanted = [&](const RowId& id) { return id.text().find(flags.filter) != std::string::npos; };
  const auto take = [&](Result r) {
    if (results.empty())
      fmt::print("{:<44} {:>8} {:>9} {:>9} {:>9} {:>9} {:>5}\n", "", "unit", "median", "p10", "p90", "peak", "%");
    print(r);
    results.push_back(std::move(r));
  };
  if (device == Device::cpu())  // the engine runs on the host
    for (Result& r : emit_rows(wanted, flags.quick ? EmitOptions{.ops = 100, .rounds = 1} : EmitOptions{}))
      take(std::move(r));
  for (const OpRow& row : op_rows(device))
    if (wanted(row.id) && (!flags.quick || small(row))) take(measured(row, flags, device, peaks));
  TG_CHECK(!results.empty(), value, "[bench_ops] no row has '{}' in its text. Without --filter all are listed.",
           flags.filter);
  return results;
}
void print_peaks(Peaks& peaks) {
  fmt::print("peaks:");
  for (const auto& [operands, gflops] : peaks.products()) fmt::print(" {:.1f} GFLOP/s {}", gflops, operands);
  fmt::print("\n");
  for (const auto& [bytes, b] : peaks.bandwidths())
    fmt::print("  {:>8} KiB: copy {:>6.1f}, triad {:>6.1f}, update {:>6.1f}, read {:>6.1f} GB/s, latency {:>5.1f} ns\n",
               bytes / 1024, b.copy, b.triad, b.update, b.read, b.latency);
}
double five_digits(double x) { return std::strtod(fmt::format("{:.5g}", x).c_str(), nullptr); }
Json json_of(const Origin& origin, const std::vector<Result>& rows, const Peaks& peaks) {
  Json j = json_of(origin);
  j["bandwidth"] = Json::array();
  for (const auto& [bytes, b] : peaks.bandwidths())
    j["bandwidth"].push_back({
        {"bytes", bytes},
        {"copy", five_digits(b.copy)},
        {"triad", five_digits(b.triad)},
        {"update", five_digits(b.update)},
        {"read", five_digits(b.read)},
        {"latency", five_digits(b.latency)},
    });
  j["rows"] = Json::array();
  for (const Result& r : rows) {
    Json row = {{"name", r.id.name}, {"shape", r.id.shape}, {"dtype", r.id.dtype}, {"unit", r.unit}};
    row["median"] = five_digits(r.median), row["p10"] = five_digits(r.p10), row["p90"] = five_digits(r.p90);
    row["percent"] = Json(), row["peak"] = Json();
    if (r.peak > 0) row["peak"] = five_digits(r.peak), row["percent"] = five_digits(100 * r.median / r.peak);
    row["runs"] = r.runs, row["seconds"] = five_digits(r.seconds);
    j["rows"].push_back(std::move(row));
  }
  return j;
}
// Writes the device's sustained rates, for `tapegrad inspect --roofline` and `train --profile`.
void write_machine(const std::string& path, Peaks& peaks, Device device) {
  Json j;
  Bandwidth b{};
  for (const auto& [level, bytes] : peaks.levels()) {
    b = peaks.bandwidth(bytes);
    fmt::print("{:<6} read {:>7.1f} GB/s, latency {:>6.1f} ns\n", level, b.read, b.latency);
  }
  j["gb_per_s"] = std::max(b.best(), b.update);
  j["f32_tflops"] = 1e-3 * peaks.gflops("f32");
  j["bf16_tflops"] = 1e-3 * peaks.gflops("bf16");
  // GPU: no 8-bit GEMM is measured; bf16's rate stands for it.
  j["int8_tflops"] = 1e-3 * peaks.gflops(device == Device::cpu() ? "i8" : "bf16");
  j["us_per_call"] = 0;
  detail::write_file_atomically(path, detail::text_of(j, 2) + "\n");
  fmt::print("wrote {}\n", path);
}
int run(const Flags& f, int argc, char** argv) {
  const Origin origin = begin(f, argc, argv);
  const Device device = Device::parse(f.device);
  Peaks peaks(f.quick ? 0 : f.seconds, device);
  const std::vector<Result> results = measure_all(f, device, peaks);
  if (!f.machine.empty()) write_machine(f.machine, peaks, device);
  print_peaks(peaks);
  write_json(f.json, json_of(origin, results, peaks));
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, Flags& f) {
    c.option("--seconds", "at least, for each row", f.seconds, 0, 60);
    c.option("--machine", "FILE",
             "write the rates that the device sustains, for `tapegrad inspect --roofline --device FILE`", f.machine);
    c.option("--filter", "TEXT", "only rows with this in their text: linear, 'softmax 4096', bf16", f.filter);
  };
  return run_benchmark<Flags>(argc, argv, "bench_ops",
                              "Measures ops and the engine against the peak of the machine. Run it on a quiet machine.",
                              kCpuTime | kQuick, declare, run);
}
