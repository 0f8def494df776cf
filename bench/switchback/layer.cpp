// The whole layer's step: forward and backward, including quantising.
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/stats.h"
#include "switchback/switchback.h"

namespace tg::bench {
namespace {
constexpr int64_t kRounds = 4;
constexpr int64_t kFirstRows = 64;  // compared; comparing all would double the memory

SwitchBackMode mode_of(LayerWay way) {
  return way == LayerWay::vector_wise        ? SwitchBackMode::vector_wise
         : way == LayerWay::memory_efficient ? SwitchBackMode::memory_efficient
                                             : SwitchBackMode::global;
}

class Layer {
 public:
  Layer(const SwitchBackShape& shape, const SwitchBackSetup& setup) : setup_(setup) {
    Rng rng{setup.seed};
    const auto draw = [&](const Shape& s) { return randn(s, rng, 0, 1, setup.dtype, setup.device); };
    x_ = draw({shape.batch, shape.dim_in()}).requires_grad_();
    g_ = draw({shape.batch, shape.dim_out()});
    w_ = draw({shape.dim_out(), shape.dim_in()}).requires_grad_();
  }
  // Result and the gradients of x and of the weight.
  std::vector<Tensor> step(LayerWay way) const { return step(way, g_); }
  std::function<std::vector<Tensor>()> runner(LayerWay way, RunMode mode) const {
    if (mode == RunMode::eager) return [this, way] { return step(way); };
    const Compiled f = compile([this, way](Inputs in) { return step(way, in[0]); });
    constexpr uint64_t kFirst = 4;
    return [this, f, recordings = std::optional<Recordings>()]() mutable {
      if (f.stats().replays == kFirst) recordings.emplace(f.stats());
      if (recordings) recordings->check(f.stats());
      return f({g_});
    };
  }
  // Bytes that a compiled int8 step holds between calls: the int8 values, and x dequantised.
  int64_t codes_bytes() const {
    const int64_t before = memory_stats(setup_.device).live;
    const NoGradScope off;
    const Quantized x = quantize_rowwise(x_), g = quantize_rowwise(g_), w = quantize_rowwise(w_),
                    columns = quantize_columnwise_transpose(w_);
    const Tensor wide = dequantize(x, setup_.dtype);
    return memory_stats(setup_.device).live - before;
  }

 private:
  std::vector<Tensor> step(LayerWay way, const Tensor& g) const {
    const Tensor y = way == LayerWay::linear ? linear(x_, w_) : switchback_linear(x_, w_, {}, mode_of(way));
    const GradMap grads = backward(y, g);
    return {y.detach(), grads[x_], grads[w_]};
  }
  SwitchBackSetup setup_;
  Tensor x_, g_, w_;
};

Tensor first_rows(const Tensor& t) { return slice(t.detach(), 0, 0, kFirstRows).to(DType::f32); }

std::vector<Tensor> first_rows(const std::vector<Tensor>& all) {
  std::vector<Tensor> first;
  for (const Tensor& t : all) first.push_back(first_rows(t));
  return first;
}

struct Way {
  LayerTime time;
  std::function<std::vector<Tensor>()> run;
  std::vector<double> rounds = {};
};
// The distances of the result and of the gradients of x and of the weight.
std::array<double, 3> distances(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  return {relative_distance(got[0], want[0]), relative_distance(got[1], want[1]), relative_distance(got[2], want[2])};
}
void check_results(const Way& way, const std::vector<Tensor>& want) {
  constexpr const char* kResults[] = {"result", "gradient of x", "gradient of the weight"};
  const std::array<double, 3> off = distances(way.run(), want);
  for (size_t i = 0; i < off.size(); ++i)
    check_near(fmt::format("{} of {}, {}", kResults[i], name_of(way.time.way), name_of(way.time.mode)), off[i]);
}
}  // namespace

double relative_distance(const Tensor& a, const Tensor& b) {
  const Tensor wide = first_rows(b), off = first_rows(a) - wide;
  return std::sqrt(double(sum(off * off).item<float>()) / double(sum(wide * wide).item<float>()));
}
void check_near(std::string_view what, double distance) {
  constexpr double kMost = 0.05;
  TG_CHECK(distance <= kMost, state,
           "[bench_switchback] the {} is off the product in full precision by {:.3g} of its size. 8-bit codes of "
           "normal numbers are off by at most {}. It is wrong: its time would mean nothing.",
           what, distance, kMost);
}

std::vector<LayerTime> layer_times(const SwitchBackShape& shape, const SwitchBackSetup& setup) {
  const Layer layer(shape, setup);
  std::vector<Way> ways;
  for (const LayerWay way : kLayerWays)
    for (const RunMode mode : {RunMode::eager, RunMode::compiled})
      ways.push_back({{way, mode, 0, 0, 0}, layer.runner(way, mode)});
  const std::vector<Tensor> want = first_rows(layer.step(LayerWay::linear));
  // A compiled step first traces, then replays, then (CUDA) records a graph.
  const int64_t untimed = std::max<int64_t>(setup.untimed(), 3), steps = std::max<int64_t>(setup.repeat / kRounds, 1);
  const int64_t rounds = std::max<int64_t>(std::min(setup.repeat, kRounds), 2);
  for (Way& way : ways) {
    check_results(way, want);
    for (int64_t i = 1; i < untimed; ++i) way.run();
  }
  synchronize(setup.device);
  for (int64_t round = 0; round < rounds; ++round)
    for (Way& way : ways) {
      const double seconds = timed([&] {
        for (int64_t i = 0; i < steps; ++i) way.run();
        synchronize(setup.device);
      });
      way.rounds.push_back(seconds / double(steps));
    }
  std::vector<LayerTime> times;
  for (Way& way : ways) {
    const auto [least, most] = std::ranges::minmax(way.rounds);
    times.push_back({way.time.way, way.time.mode, median(way.rounds), least, most});
  }
  return times;
}

int64_t planned_bytes(const SwitchBackShape& shape, const SwitchBackSetup& setup) {
  int64_t parts = 0, layers = 0;
  dry_run([&] {
    const SwitchBackOps ops(shape, setup);
    for (size_t op = 0; op < kOps; ++op) ops.run(op);
    ops.distances();
    parts = memory_stats(setup.device).peak;
  });
  if (!setup.layers) return parts;
  dry_run([&] {
    const Layer layer(shape, setup);
    const auto live = [&] { return memory_stats(setup.device).live; };
    const int64_t base = live();
    std::vector<Tensor> results = layer.step(LayerWay::linear);
    const int64_t recorded = setup.device == Device::cpu() ? 0 : live() - base;  // a CUDA graph has separate memory
    const std::vector<Tensor> want = first_rows(results);
    results.clear();
    const int64_t held = (std::size(kLayerWays) - 1) * layer.codes_bytes() + std::size(kLayerWays) * recorded;
    reset_peak(setup.device);
    for (const LayerWay way : kLayerWays) distances(layer.step(way), want);
    layers = memory_stats(setup.device).peak + held;
  });
  return std::max(parts, layers);
}

SwitchBackRow measured_row(const SwitchBackShape& shape, const SwitchBackSetup& setup, Peaks& peaks) {
  empty_cache(setup.device);  // frees the previous row
  reset_peak(setup.device);
  SwitchBackRow row{shape, {}, {}};
  row.repeat = setup.repeat;
  {
    const SwitchBackOps ops(shape, setup);
    for (const auto& [op, distance] : ops.distances()) check_near(op, distance);
    row.ms = ops.times();
  }
  if (setup.layers) row.layers = layer_times(shape, setup);
  row.peak_bytes = memory_stats(setup.device).peak;
  row.rates = rates(shape, setup, row.ms, peaks);
  return row;
}

}  // namespace tg::bench
