// The collectives of core/comm/communicator.h over sizes of messages, and the network that comes nearest to them
// (models/train/ data_parallel.h): mpirun -n N bench_comm. All ranks measure, the slowest counts, and rank 0 prints.
#include "common/program.h"
#include "dist/fit.h"

#include <fmt/format.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/train/data_parallel.h>

#include <cstdio>

using namespace tg;
using namespace tg::bench;
namespace {
constexpr const char* kProgram = "bench_comm";

struct Flags : SharedFlags {
  double seconds = 0.3;
  int64_t largest = 64 << 20;
  std::string network, in_node;
};
struct Row {
  std::string collective;
  double bytes;  // of a message; of all_reduce, of a rank's elements
  Timing time;
};

// Samples of f, which all ranks call: those of the slowest rank. Short ones are batched, and ranks begin together.
Timing measured(Communicator& world, const Flags& flags, const std::function<void()>& f) {
  const auto slowest = [&](double s) { return 1e-9 * double(world.max(int64_t(1e9 * s))); };
  const auto sample = [&](int64_t calls) {
    world.barrier();
    return slowest(timed([&] {
                     for (int64_t i = 0; i < calls; ++i) f();
                   }) /
                   double(calls));
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
    // The same without messages: what every rank copies and adds up.
    const auto hollow = Communicator::hollow(world.size());
    row("its sums alone", [&] { all_reduce(*hollow, {&sum, 1}); });
  }
  return rows;
}

bool exchanges(const Row& r) { return r.collective == "all_to_all" || r.collective == "all_gather"; }

Network network_of(const std::vector<Row>& rows, const Communicator& world, const Flags& flags) {
  Network n;
  const int local = world.local_size(), far = world.size() - local;
  if (!flags.in_node.empty()) n = network(flags.in_node);
  n.ranks_per_node = local;
  std::vector<Exchange> all;
  for (const Row& r : rows)
    if (exchanges(r)) {
      // Of ranks on several machines, what is left when the messages within them are taken off.
      const double near = far ? exchange_seconds(n, local, r.bytes) : 0;
      TG_CHECK(r.time.median > near, value,
               "[{}] {} of {:.0f} bytes took {:.3g} s, and its messages within a machine should take {:.3g} s by {}. "
               "Measure that file again.",
               kProgram, r.collective, r.bytes, r.time.median, near, flags.in_node);
      all.push_back({r.bytes, r.time.median - near});
    }
  const Link link = fit(all, far ? far : local - 1);
  TG_CHECK(link.beta > 0, value, "[{}] longer messages took no more time. The machine is too busy. Measure again.",
           kProgram);
  n.us_between = 1e6 * link.alpha, n.gb_per_s_between = 1e-9 / link.beta;
  if (!far) n.us_in_node = n.us_between, n.gb_per_s_in_node = n.gb_per_s_between;
  const Row& sums = rows.back();
  n.gb_per_s_sum = 1e-9 * sums.bytes / sums.time.median;
  return n;
}
double predicted(const Row& r, const Network& n, int64_t ranks) {
  if (exchanges(r)) return exchange_seconds(n, ranks, r.bytes);
  if (r.collective == "all_reduce") return sum_cost(n, ranks, r.bytes, r.bytes).seconds();
  return 0;  // no model
}

Json print_rows(const std::vector<Row>& rows, const Network& n, int64_t ranks) {
  Json all = Json::array();
  double sum = 0, most = 0, count = 0;
  fmt::print("\n{:16} {:>10} {:>12} {:>12} {:>12} {:>12} {:>8}\n", "collective", "bytes", "median us", "p10", "p90",
             "model us", "error");
  for (const Row& r : rows) {
    const double model = predicted(r, n, ranks), error = model / r.time.median - 1;
    fmt::print("{:16} {:10.0f} {:12.2f} {:12.2f} {:12.2f}", r.collective, r.bytes, 1e6 * r.time.median,
               1e6 * r.time.p10, 1e6 * r.time.p90);
    Json j = {{"collective", r.collective},
              {"bytes", r.bytes},
              {"seconds", {{"median", r.time.median}, {"p10", r.time.p10}, {"p90", r.time.p90}}},
              {"runs", r.time.runs}};
    if (model > 0) {
      fmt::print(" {:12.2f} {:+7.0f}%", 1e6 * model, 100 * error);
      j["model"] = model;
    }
    fmt::print("\n");
    if (exchanges(r)) sum += std::abs(error), most = std::max(most, std::abs(error)), ++count;
    all.push_back(std::move(j));
  }
  fmt::print("\nthe fit of all_to_all and all_gather is off by {:.0f} % in the mean and {:.0f} % at most\n",
             100 * sum / count, 100 * most);
  return all;
}

int run(const Flags& f, int argc, char** argv) {
  Communicator& world = *Communicator::world();
  if (world.size() == 1)
    throw apps::UsageError("bench_comm measures messages between processes: mpirun -n 2 --bind-to none bench_comm");
  check_within(kProgram, "largest", f.largest, 4096, 1 << 30);
  TG_CHECK(Device::parse(f.device) == Device::cpu(), value, "[{}] --device {}. It measures the host's collectives.",
           kProgram, f.device);
  const int64_t local = world.local_size();
  TG_CHECK(world.max(local) == -world.max(-local), value,
           "[{}] machines with {} to {} ranks. All must have the same number. Start as many on each.", kProgram,
           -world.max(-local), world.max(local));
  if (local < world.size() && f.in_node.empty())
    throw apps::UsageError(
        "ranks on several machines need --in-node FILE, what `mpirun -n 2 bench_comm --network FILE` wrote on one of "
        "them");
  if (world.rank() > 0 && !std::freopen("/dev/null", "w", stdout)) return 1;
  const Origin origin = begin(f, argc, argv, fmt::format("; {} ranks, {} on a machine", world.size(), local));
  const std::vector<Row> rows = measure_all(world, f);
  if (world.rank() > 0) return 0;
  const Network n = network_of(rows, world, f);
  Json all = json_of(origin), figures = Json::object();
  visit_network_fields(n, [&](const char* key, auto x) { figures[key] = x; });
  all["ranks"] = world.size();
  all["collectives"] = print_rows(rows, n, world.size());
  fmt::print("{:.3g} us a message and {:.4g} GB/s {}; {:.4g} GB/s of sums\n", n.us_between, n.gb_per_s_between,
             local < world.size() ? "between machines" : "in this machine", n.gb_per_s_sum);
  all["network"] = figures;
  if (!f.network.empty()) {
    write_file_atomically(f.network, text_of(figures, 2) + "\n");
    fmt::print(
        "wrote {}{}\n", f.network,
        local < world.size() ? "" : "; nothing was sent between machines: it says there what it says within one");
  }
  if (!f.json.empty()) write_json(f.json, all);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  Flags f;
  const auto declare = [&](Command& c) {
    c.option("--seconds", "at least, for each collective and size", f.seconds, 0, 60);
    c.option("--largest", "bytes of the longest message", f.largest);
    c.option("--network", "FILE", "write the fit, for `tapegrad inspect --plan --ranks N --network FILE`", f.network);
    c.option("--in-node", "FILE", "of ranks on several machines: such a file of one of them", f.in_node);
    declare_results(c, f);
    return [&] { return run(f, argc, argv); };
  };
  return apps::run_program(
      argc, argv,
      {kProgram, "Measures collectives between processes, and fits alpha and beta: mpirun -n N bench_comm.", declare});
}
