#include "lora_training/host_time.h"

#include <fmt/format.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/op.h>
#include <tapegrad/ops/ops.h>

#include "common/harness.h"

namespace tg::bench {
namespace {

// ns per op of a chain of one-element cumulative sums, modes alternating. Pointwise ops would be fused; of the others,
// these have the smallest kernel.
void time_ops(Device device, HostTimeOptions o, HostTime& t) {
  const Work chain{[n = o.ops](Inputs in) {
                     Tensor y = in[0];
                     for (int i = 0; i < n; ++i) y = cumsum(y, 0);
                     return std::vector{y};
                   },
                   {ones({1}, DType::f32, device)}};
  std::vector<double> times[2];
  const std::function<std::vector<Tensor>()> runs[] = {runner(chain, RunMode::eager), runner(chain, RunMode::compiled)};
  for (int k = 0; k <= o.rounds; ++k)
    for (size_t mode : {0, 1}) {
      const double start = now();
      runs[mode]();
      const double spent = now() - start;
      synchronize(device);
      if (k) times[mode].push_back(1e9 * spent / o.ops);  // the first traces
    }
  t.eager.ns_per_op = summary(times[0]).median;
  t.compiled.ns_per_op = summary(times[1]).median;
}
void time_steps(Device device, HostTimeOptions o, HostTime& t) {
  const Work eager = lora_step(device), other = lora_step(device);
  const Compiled compiled = compile(other.f);
  const auto a = [&] { eager.f(eager.in), synchronize(device); };
  const auto b = [&] { compiled(other.in), synchronize(device); };
  a(), b();
  const uint64_t before = engine_stats().kernels;
  a();
  t.eager.ops = size_t(engine_stats().kernels - before);
  b();
  t.compiled.ops = compiled.stats().ops;
  for (int i = 0; i < 3; ++i) b();
  const Recordings recordings(compiled.stats());
  const Paired p = measure_pair(b, a, {.warmup = o.seconds / 5, .min_seconds = o.seconds, .min_runs = 5});
  t.compiled.step = p.a.median, t.eager.step = p.b.median, t.ratio = p.ratio;
  const CompileStats& stats = compiled.stats();
  recordings.check(stats);
  t.replays = stats.replays, t.graph_launches = stats.graph_launches, t.why_no_graph = stats.why_no_graph;
}

}  // namespace

HostTime host_time(Device device, HostTimeOptions o) {
  HostTime t{};
  time_ops(device, o, t);
  time_steps(device, o, t);
  return t;
}

std::string text(const HostTime& t, HostTimeOptions o) {
  const auto line = [](const char* name, const HostTime::In& m) {
    return fmt::format("  {:<9}{:>6.1f} ns per op; {} ops x {:.1f} ns / {} = {:.1f} % of the step\n", name, m.ns_per_op,
                       m.ops, m.ns_per_op, format_time(m.step), 100 * m.share());
  };
  const auto met = [](bool yes) { return yes ? "met" : "missed"; };
  std::string r = fmt::format(
      "Host time: what an op costs in a run of {} cumulative sums of one element, kernels included,\n"
      "  and ops of the step x ns per op / time of the step = the share that is not spent in the step's kernels\n",
      o.ops);
  r += line("eager", t.eager) + line("compiled", t.compiled);
  r += fmt::format("  {} of {} compiled steps were one launch of a graph{}{}\n", t.graph_launches, t.replays,
                   t.why_no_graph.empty() ? "" : ": ", t.why_no_graph);
  r += fmt::format("  wanted: a compiled step takes at most 1.00 of an eager one: {:.3f}, {}\n", t.ratio,
                   met(t.ratio <= 1));
  r += fmt::format("  wanted: a replayed op takes at most 100 ns: {:.1f}, {}\n", t.compiled.ns_per_op,
                   met(t.compiled.ns_per_op <= 100));
  return r;
}

}  // namespace tg::bench
