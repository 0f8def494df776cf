#include "gpt_timeit/timeit.h"

#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "common/stats.h"

namespace tg::bench {
namespace {
constexpr std::string_view kTimeit = "bench_gpt_timeit";
constexpr std::string_view kTimeitSizes[] = {"small", "medium", "tiny"};
constexpr const char* kLastNorm = "ln_f.weight";

void check_memory(const TimeitRun& r, const TimeitSetup& s) {
  const auto bytes = [=](const TimeitSetup& with) { return TimeitModel::planned_bytes(r, with); };
  check_setup_fits(fmt::format("[bench_gpt_timeit] {} with batch {} and context {}", r.key(), s.batch, s.context), s,
                   bytes, {}, s.device);
}
Tensor random_ids(const TimeitSetup& s, Rng& rng) {  // (B, T)
  return rand({s.batch, s.context}, rng, 0, double(s.vocab), DType::f64, s.device).to(DType::i64);
}
}  // namespace

std::string TimeitRun::key() const {
  return fmt::format("{}_{}_warmup_{}_mixed_{}", size, name_of(computation), warmup, name_of(Word(mixed)));
}

std::vector<TimeitRun> timeit_runs(const TimeitFlags& f) {
  std::vector<TimeitRun> runs;
  for (const std::string& size : f.sizes) {
    detail::known_place("size", size, kTimeitSizes);
    for (const Computation c : f.computations)
      for (const int64_t warmup : f.warmups)
        for (const Word mixed : f.mixed) runs.push_back({size, c, warmup, mixed == Word::True});
  }
  return runs;
}
TimeitPlan timeit_plan(const TimeitFlags& flags) {
  TimeitFlags f = flags;
  if (f.quick) f.sizes = {"tiny"}, f.setup.batch = 2, f.setup.context = 8, f.setup.vocab = 50;
  for (const int64_t n : f.warmups) check_within(kTimeit, "warmups", n, 0, 1'000'000);
  TimeitPlan plan{f.setup, {}, timeit_runs(f)};
  plan.setup.device = Device::parse(f.device);
  check_once(kTimeit, plan.matrix, &TimeitRun::key);
  if (!f.matrix_only)
    for (const int64_t warmup : {0, 1})
      plan.standalone.push_back({f.sizes.front(), Computation::forward_backward, warmup, false});
  for (auto* runs : {&plan.standalone, &plan.matrix})
    std::erase_if(*runs, [&](const TimeitRun& r) { return r.key().find(f.filter) == std::string::npos; });
  TG_CHECK(!plan.matrix.empty(), value,
           "[bench_gpt_timeit] no run has '{}' in its name, such as {}. Without --filter all are run.", f.filter,
           TimeitRun{f.sizes.front()}.key());
  for (const auto* runs : {&plan.standalone, &plan.matrix})
    for (const TimeitRun& r : *runs) check_memory(r, plan.setup);
  return plan;
}

GptConfig timeit_config(const TimeitRun& r, const TimeitSetup& s) {
  GptConfig c = model_preset(r.size == "medium" ? "gpt-medium-10k" : "gpt-small-10k");
  if (r.size == "tiny") c.layers = 2, c.heads = 2, c.width = 32;
  c.context = s.context;
  c.vocab_size = s.vocab;
  c.attn_dropout = s.attn_pdrop, c.resid_dropout = s.resid_pdrop, c.embd_dropout = s.token_position_pdrop;
  c.ff_dropout = FfDropout::activation;
  c.ff_width = s.d_ff, c.bias = c.head_bias = s.bias, c.tied_head = s.weight_tie;
  if (s.tanh) c.activation = Activation::gelu_tanh;
  return c;
}

TimeitResult summarised(Computation c, std::vector<double> times) {
  const auto [least, most] = std::ranges::minmax(times);
  return {.computation = c,
          .times = times,
          .mean_time = mean(times),
          .median_time = median(times),
          .std_dev = population_deviation(times),
          .min_time = least,
          .max_time = most,
          .total_time = std::accumulate(times.begin(), times.end(), 0.0),
          .profile_steps = int64_t(times.size())};
}

TimeitModel::TimeitModel(const TimeitRun& run, const TimeitSetup& setup)
    : setup_(setup),
      compute_(run.mixed ? DType::bf16 : DType::f32),
      params_(setup.device, setup.seed),
      model_(Gpt(params_, timeit_config(run, setup))),
      gradients_(params_) {
  Rng rng{setup.seed};
  tokens_ = random_ids(setup, rng);
  targets_ = random_ids(setup, rng);
}

int64_t TimeitModel::planned_bytes(const TimeitRun& run, const TimeitSetup& setup) {
  TimeitSetup s = setup;
  s.mode = RunMode::eager;
  int64_t peak = 0;
  dry_run([&] {
    TimeitModel model(run, s);
    for (int64_t i = 0; i < std::min<int64_t>(run.warmup + s.steps, 2); ++i) model.step(run.computation);
    peak = memory_stats(s.device).peak;
  });
  return peak;
}

Tensor TimeitModel::loss_on_tape() {
  const MatmulPrecisionScope precision(setup_.matmul_precision);
  return cross_entropy(model_.forward(tokens_, {.rng = &masks_, .compute = compute_}), targets_);
}
double TimeitModel::timed(const std::function<void()>& f) const {
  return bench::timed([&] {
    f();
    synchronize(setup_.device);
  });
}

double TimeitModel::step(Computation c) {
  if (setup_.mode == RunMode::compiled) return compiled_step(c);
  masks_ = {setup_.seed};
  if (c == Computation::forward) return timed([&] { loss_ = loss_on_tape().detach(); });
  if (c == Computation::forward_backward)
    return timed([&] {
      const Tensor loss = loss_on_tape();
      gradients_.add(backward(loss));
      loss_ = loss.detach();
    });
  const Tensor loss = loss_on_tape();
  loss_ = loss.detach();
  synchronize(setup_.device);
  return timed([&] { gradients_.add(backward(loss)); });
}
double TimeitModel::compiled_step(Computation c) {
  const auto run = [&](const Compiled& f) {
    masks_ = {setup_.seed};
    return timed([&] { loss_ = f({tokens_, targets_})[0]; });
  };
  if (c == Computation::forward_backward) return run(*both_);
  const double forward = run(*forward_);
  return c == Computation::forward ? forward : run(*both_) - forward;
}
void TimeitModel::trace(Computation c) {
  const CompileOptions draws{.generators = {&masks_}};
  forward_ = compile([this](Inputs) { return std::vector{loss_on_tape().detach()}; }, draws);
  const auto both = [this](Inputs) {
    const Tensor loss = loss_on_tape();
    gradients_.add(backward(loss));
    return std::vector{loss.detach()};
  };
  both_ = compile(both, draws);
  if (c != Computation::forward) gradients_.make();
}

TimeitResult TimeitModel::profile(Computation c, int64_t warmup) {
  reset_peak(setup_.device);
  if (setup_.mode == RunMode::compiled) trace(c);
  std::vector<double> times;
  const auto stats = [&] { return c == Computation::forward ? forward_->stats() : both_->stats(); };
  std::optional<Recordings> recordings;
  for (int64_t i = 0; i < warmup + setup_.steps; ++i) {
    if (i == std::max<int64_t>(warmup, 4) && both_) recordings.emplace(stats());
    const double seconds = step(c);
    if (c != Computation::forward && ++passes_ == 1) first_ = gradients_.of(kLastNorm).to_vector<float>();
    if (i >= warmup) times.push_back(seconds);
  }
  if (recordings) recordings->check(stats());
  check_work();
  TimeitResult r = summarised(c, std::move(times));
  r.peak_bytes = memory_stats(setup_.device).peak;
  r.loss = loss_.item<float>();
  return r;
}

void TimeitModel::check_work() const {
  const double loss = loss_.item<float>(), guessing = std::log(double(setup_.vocab));
  const double range = 0.5 + 4 / std::sqrt(double(setup_.batch) * double(setup_.context));
  TG_CHECK(std::abs(loss - guessing) < range, state,
           "[bench_gpt_timeit] the loss is {:.6g}. With new weights all {} ids are about equally likely, and it is log "
           "{} = {:.6g} to within {:.2g}. The forward pass is wrong: its time would mean nothing.",
           loss, setup_.vocab, setup_.vocab, guessing, range);
  if (passes_ == 0) return;
  const std::vector<float> sum = gradients_.of(kLastNorm).to_vector<float>();
  double size = 0, off = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    const double want = double(passes_) * double(first_[i]);
    size += want * want;
    off += (sum[i] - want) * (sum[i] - want);
  }
  TG_CHECK(size > 0 && off <= 1e-8 * size, state,
           "[bench_gpt_timeit] after {} backward passes the gradient of {} is off {} times that of the first one by "
           "{:.3g} of its size {:.3g}. Nothing is updated between them, so it must be that. The backward pass is "
           "wrong: its time would mean nothing.",
           passes_, kLastNorm, passes_, std::sqrt(off), std::sqrt(size));
}

}  // namespace tg::bench
