// Collectives of core/comm/communicator.h over message sizes: mpirun -n N bench_comm. The slowest rank counts.
// predict.py fits a network to the results.
#include "common/program.h"

#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/collectives.h>

#include <cstdio>

using namespace tg;
using namespace tg::bench;
namespace {
constexpr const char* kProgram = "bench_comm";

struct Flags : SharedFlags {
  double seconds = 0.3;
  int64_t largest = 64 << 20;
};
struct Row {
  std::string collective;
  double bytes;  // message size; all_reduce: a rank's elements
  Timing time;
};

// Samples of f on all ranks after a barrier; the slowest rank counts. Short calls are batched.
Timing measured(Communicator& world, const Flags& flags, const std::function<void()>& f) {
  const auto slowest = [&](double s) { return 1e-9 * double(world.max(int64_t(1e9 * s))); };
  const auto sample = [&](int64_t calls) {
    world.barrier();
    const double s = timed([&] {
      for (int64_t i = 0; i < calls; ++i) f();
    });
    return slowest(s / double(calls));
  };
  (void)sample(3);
  const double once = std::max(sample(3), 1e-9);
  const auto calls = std::max(int64_t(1), int64_t(2e-4 / once));
  const auto samples = std::clamp(int64_t(flags.seconds / (once * double(calls))), int64_t(5), int64_t(1001));
  std::vector<double> all;
  for (int64_t i = 0; i < samples; ++i) all.push_back(sample(calls));
  return summary(all);
}

std::vector<Row> measure_all(Communicator& world, const Flags& flags) {
  std::vector<Row> rows;
  const auto ranks = size_t(world.size());
  std::vector<char> from, to;
  for (int64_t m = 8; m <= flags.largest; m *= 8) {
    const auto bytes = size_t(m);
    from.assign(ranks * bytes, 1), to.assign(ranks * bytes, 2);
    const auto row = [&](const char* name, const std::function<void()>& f) {
      rows.push_back({name, double(m), measured(world, flags, f)});
    };
    row("all_to_all", [&] { world.all_to_all(from.data(), to.data(), bytes); });
    row("all_gather", [&] { world.all_gather(from.data(), to.data(), bytes); });
    row("broadcast", [&] { world.broadcast(to.data(), bytes, 0); });
    const std::vector<float> x(bytes / sizeof(float), 1);
    std::vector<float> y(x.size());
    const ReduceBuffer sum{x.data(), y.data(), int64_t(x.size()), DType::f32};
    row("all_reduce", [&] { all_reduce(world, {&sum, 1}); });
    // Without messages: the local copies and sums of a rank.
    const auto fake = Communicator::fake(world.size());
    row("its sums alone", [&] { all_reduce(*fake, {&sum, 1}); });
  }
  return rows;
}

Json print_rows(const std::vector<Row>& rows) {
  Json all = Json::array();
  fmt::print("\n{:16} {:>10} {:>12} {:>12} {:>12}\n", "collective", "bytes", "median us", "p10", "p90");
  for (const Row& r : rows) {
    fmt::print("{:16} {:10.0f} {:12.2f} {:12.2f} {:12.2f}\n", r.collective, r.bytes, 1e6 * r.time.median,
               1e6 * r.time.p10, 1e6 * r.time.p90);
    all.push_back(
        {{"collective", r.collective}, {"bytes", r.bytes}, {"seconds", json_of(r.time)}, {"runs", r.time.runs}});
  }
  return all;
}

int run(const Flags& f, int argc, char** argv) {
  Communicator& world = *Communicator::world();
  if (world.size() == 1)
    throw apps::UsageError("bench_comm measures messages between processes: mpirun -n 2 --bind-to none bench_comm");
  TG_CHECK(Device::parse(f.device) == Device::cpu(), value, "[{}] --device {}. It measures the host's collectives.",
           kProgram, f.device);
  const int64_t local = world.local_size();
  TG_CHECK(world.max(local) == -world.max(-local), value,
           "[{}] machines with {} to {} ranks. All must have the same number. Start as many on each.", kProgram,
           -world.max(-local), world.max(local));
  if (world.rank() > 0 && !std::freopen("/dev/null", "w", stdout)) return 1;
  const Origin origin = begin(f, argc, argv, fmt::format("; {} ranks, {} on a machine", world.size(), local));
  const std::vector<Row> rows = measure_all(world, f);
  if (world.rank() > 0) return 0;
  Json all = json_of(origin);
  all["ranks"] = world.size(), all["ranks_per_node"] = local;
  all["collectives"] = print_rows(rows);
  write_json(f.json, all);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, Flags& f) {
    c.option("--seconds", "at least, for each collective and size", f.seconds, 0, 60);
    c.option("--largest", "bytes of the longest message", f.largest, 4096, 1 << 30);
  };
  return run_benchmark<Flags>(argc, argv, kProgram, "Measures collectives between processes: mpirun -n N bench_comm.",
                              0, declare, run);
}
