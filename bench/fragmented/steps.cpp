#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
constexpr double kRate = 1e-3;

nn::Selection selection_of(CellMode m) { return m == CellMode::inference ? nn::Selection::hard : nn::Selection::soft; }

// Some weights on the host: the first row of a matrix, or of each fragment's matrix.
std::vector<float> some_weights(const Parameter& p) {
  const NoGradScope off;
  const Tensor& t = p.tensor;
  const int dim = int(t.ndim()) - 2;
  return (t.ndim() < 2 || p.name == "selector" ? t.detach() : slice(t.detach(), dim, 0, 1)).to_vector<float>();
}
// Whether hard selection gives this parameter no gradient, or a zero one for some fragments.
bool unreached(const Parameter& p, CellMode m) { return m == CellMode::inference && p.name == "selector"; }
bool partly_reached(const Parameter& p, CellMode m) {
  return m == CellMode::inference && (p.name == "experts" || p.name == "compressor");
}

void check_moved(const Parameter& p, CellMode mode, const std::vector<float>& before) {
  const std::vector<float> after = some_weights(p);
  size_t moved = 0, wrong = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    const double by = std::abs(double(after[i]) - before[i]);
    moved += by > 0;
    wrong += by > 1.01 * kRate;
  }
  const double part = double(moved) / double(after.size());
  const bool right = unreached(p, mode) ? moved == 0 : partly_reached(p, mode) ? moved > 0 : part > 0.98;
  TG_CHECK(right && wrong == 0, state,
           "[bench_fragmented] the first step of Adam moves {} of {} weights of {}, {} of them by more than the "
           "learning rate {}. It is wrong: its time would mean nothing.",
           moved, after.size(), p.name, wrong, kRate);
}
}  // namespace

FragmentedModel::FragmentedModel(const FragmentedCell& c, const FragmentedSetup& setup)
    : params_(setup.device, setup.seed) {
  if (c.mode == CellMode::linear)
    linear_ = nn::Linear(params_, c.size, c.size);
  else
    fragmented_ = nn::FragmentedLinear(params_, c.size, c.size, {.fragments = c.fragments});
  Rng rng{setup.seed};
  x_ = randn({c.batch, c.size}, rng, 0, 1, DType::f32, setup.device);
  target_ = randn({c.batch, c.size}, rng, 0, 1, DType::f32, setup.device);
}
Tensor FragmentedModel::forward(CellMode mode) const {
  return mode == CellMode::linear ? linear_.forward(x_) : fragmented_.forward(x_, selection_of(mode));
}
Tensor FragmentedModel::loss(const Tensor& y) const { return mse_loss(y, target_); }

FragmentedSteps::FragmentedSteps(const FragmentedModel& model, CellMode mode, FragmentedVariant variant, Device device)
    : model_(&model),
      mode_(mode),
      variant_(variant),
      device_(device),
      adam_(model.params().trainable(), AdamWConfig::adam(kRate)) {
  if (variant.run == RunMode::eager) return;
  forward_ = compile([this](Inputs) { return std::vector{model_->forward(mode_).detach()}; });
  step_ = compile([this](Inputs) {
    const Tensor loss = model_->loss(model_->forward(mode_));
    update(loss);
    return std::vector{loss.detach()};
  });
}
void FragmentedSteps::update(const Tensor& loss) {
  if (variant_.step == StepWay::folded)
    adam_.backward_and_step(loss, {.missing_grad = MissingGrad::skip});
  else
    adam_.step(backward(loss), {.missing_grad = MissingGrad::skip});
}
FragmentedSteps::Seconds FragmentedSteps::run() {
  Tensor y;
  const double forward = timed([&] {
    y = forward_ ? (*forward_)({})[0] : model_->forward(mode_);
    synchronize(device_);
  });
  if (step_) {
    y = {};
    const double all = timed([&] {
      loss_ = (*step_)({})[0];
      synchronize(device_);
    });
    return {forward, all - forward};
  }
  const Tensor loss = model_->loss(y);
  const double backward = timed([&] {
    update(loss);
    synchronize(device_);
  });
  loss_ = loss.detach();
  return {forward, backward};
}
void FragmentedSteps::run_first() {
  const std::vector<Parameter> all = model_->params().all();
  std::vector<std::vector<float>> before;
  for (const Parameter& p : all) before.push_back(some_weights(p));
  run();
  for (size_t i = 0; i < all.size(); ++i) check_moved(all[i], mode_, before[i]);
}

FragmentedResult measured_cell(const FragmentedModel& model, const FragmentedCell& cell, FragmentedVariant variant,
                               const FragmentedSetup& setup) {
  FragmentedSteps steps(model, cell.mode, variant, setup.device);
  steps.run_first();
  FragmentedResult r;
  r.first_loss = steps.loss();
  // A compiled step first traces, then replays, then (CUDA) records a graph.
  const int64_t untimed = variant.run == RunMode::compiled ? std::max<int64_t>(setup.warmup, 3) : setup.warmup;
  for (int64_t i = 1; i < untimed; ++i) steps.run();
  empty_cache(setup.device);
  reset_peak(setup.device);
  std::optional<Recordings> recordings;
  for (int64_t i = 0; i < setup.steps; ++i) {
    if (i == 1 && steps.stats()) recordings.emplace(*steps.stats());  // the first run found an empty cache
    const auto [forward, backward] = steps.run();
    r.forward_ms += 1e3 * forward / double(setup.steps), r.backward_ms += 1e3 * backward / double(setup.steps);
  }
  if (recordings) recordings->check(*steps.stats());
  const MemoryStats memory = memory_stats(setup.device);
  r.live_bytes = memory.peak, r.reserved_bytes = memory.live + memory.cached;  // the cache never shrank in between
  r.last_loss = steps.loss();
  TG_CHECK(std::isfinite(r.last_loss), state, "[bench_fragmented] the loss of {} is {}. The training has failed.",
           cell.name(), r.last_loss);
  return r;
}

PlannedBytes planned_bytes(const FragmentedCell& cell, StepWay way, const FragmentedSetup& setup) {
  PlannedBytes r{};
  dry_run([&] {
    const FragmentedModel model(cell, setup);
    FragmentedSteps steps(model, cell.mode, {.step = way}, setup.device);
    steps.run();
    r.all = memory_stats(setup.device).peak;
    reset_peak(setup.device);
    steps.run();
    r.step = memory_stats(setup.device).peak;
    r.all = std::max(r.all, r.step);
  });
  return r;
}

}  // namespace tg::bench
