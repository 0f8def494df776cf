#include "lm_profile/run.h"

#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <cmath>

#include "lm_profile/model.h"

namespace tg::bench {
namespace {
constexpr std::string_view kLmProfile = "bench_lm_profile";
struct LmSize {
  std::string_view name;
  int64_t width, ff, layers, heads;
};
constexpr LmSize kLmSizes[] = {{"small", 768, 3072, 12, 12},  {"medium", 1024, 4096, 24, 16},
                               {"large", 1280, 5120, 36, 20}, {"xl", 1600, 6400, 48, 25},
                               {"2.7B", 2560, 10240, 32, 32}, {"tiny", 32, 96, 2, 4}};
constexpr double kLmLr = 1e-3, kDecay = 0.01;  // AdamW's rate, not in the document

LmSetup setup_of(const LmFlags& f) {
  LmSetup s = f.setup;
  s.model = lm_config(s.size);
  s.device = Device::parse(f.device);
  s.model.context = f.context;
  s.model.vocab_size = f.vocab;
  if (f.layers) s.model.layers = f.layers;
  TG_CHECK(s.precision != Precision::bf16 || s.form == LmForm::fused, value,
           "[bench_lm_profile] precision bf16 and form {}. The document's form computes in f32. Take --form fused.",
           name_of(s.form));
  TG_CHECK(s.precision != Precision::tf32 || s.device != Device::cpu(), value,
           "[bench_lm_profile] precision tf32 on {}. TF32 is what tensor cores of a GPU multiply. Take --device cuda, "
           "or f32.",
           s.device);
  return s;
}
// Flags that change `own` to s.
std::string flags_of(const LmSetup& s, const LmSetup& own) {
  std::string flags;
  if (s.form != own.form) flags += fmt::format(" --form {}", name_of(s.form));
  if (s.precision != own.precision) flags += fmt::format(" --precision {}", name_of(s.precision));
  return flags.substr(1);
}
void check_memory(const LmSetup& s, StepType type) {
  const auto bytes = [=](const LmSetup& with) { return planned_bytes(with, type); };
  std::vector<Variant> others;
  for (const auto& [form, precision] :
       {std::pair{LmForm::flash, Precision::f32}, {LmForm::fused, Precision::f32}, {LmForm::fused, Precision::bf16}}) {
    LmSetup other = s;
    other.form = form, other.precision = precision;
    if (form > s.form || (form == s.form && precision > s.precision))
      others.push_back({flags_of(other, s), [=] { return planned_bytes(other, type); }});
  }
  check_setup_fits(fmt::format("[bench_lm_profile] {} of size {} ({}, {}) with batch {} and context {}", name_of(type),
                               s.size, name_of(s.form), name_of(s.precision), s.batch, s.model.context),
                   s, bytes, others, s.device);
}
Model form_of(const LmSetup& s, const Params& p) {
  if (s.form == LmForm::fused) return Gpt(p, s.model);
  return DocumentLm(p, s.model, s.form == LmForm::flash ? DocumentLm::Scores::blocks : DocumentLm::Scores::matrix);
}
// Creates parameters on the host and copies each to the device, like the document.
Params made_on_host(const LmSetup& s) {
  Params params(s.device, s.seed);
  if (s.device == Device::cpu()) return params;
  const Params host(Device::cpu(), s.seed);
  form_of(s, host);
  params.load(host.state());
  return params;
}
}  // namespace

GptConfig lm_config(std::string_view size) {
  std::vector<std::string_view> names;
  for (const LmSize& s : kLmSizes) names.push_back(s.name);
  const LmSize& s = kLmSizes[detail::known_place("size", size, names)];
  GptConfig c = model_preset("cs336-2.7b");
  c.width = s.width, c.ff_width = s.ff, c.layers = s.layers, c.heads = s.heads;
  return c;
}

LmPlan lm_plan(const LmFlags& flags) {
  LmFlags f = flags;
  if (f.quick) f.setup.size = "tiny", f.setup.batch = 1, f.context = 8, f.vocab = 40;
  if (f.quick && !f.contexts.empty()) f.contexts = {8, 16};
  LmPlan plan{{setup_of(f)}, f.types};
  check_once(kLmProfile, f.types, name_of<StepType>);
  TG_CHECK(!f.answers || std::ranges::find(plan.types, StepType::train) != plan.types.end(), value,
           "[bench_lm_profile] --answers without train in --types. The answers compare steps of train. Add it.");
  if (f.answers) {
    const auto with = [&](LmForm form, Precision precision) {
      LmSetup s = plan.setups.front();
      s.form = form, s.precision = precision;
      if (form != plan.setups.front().form || precision != plan.setups.front().precision) plan.setups.push_back(s);
    };
    for (const LmForm form : {LmForm::document, LmForm::flash, LmForm::fused}) with(form, Precision::f32);
    if (plan.setups.front().device != Device::cpu()) with(LmForm::fused, Precision::tf32);
    with(LmForm::fused, Precision::bf16);
  }
  if (!f.contexts.empty()) {
    TG_CHECK(!f.answers && f.csv.empty(), value,
             "[bench_lm_profile] --contexts with --answers or --csv. It compares its own steps. Give one of them.");
    check_once(kLmProfile, f.contexts, [](int64_t c) { return std::to_string(c); });
    plan = {{}, {StepType::train}};
    for (const int64_t context : f.contexts) {
      check_within(kLmProfile, "contexts", context, 2, INT32_MAX);
      LmSetup s = setup_of(f);
      s.model.context = context;
      for (const LmForm form : {LmForm::document, LmForm::flash, LmForm::fused})
        s.form = form, plan.setups.push_back(s);
    }
  }
  for (const StepType type : plan.types) check_memory(plan.setups.front(), type);
  for (const LmSetup& s : plan.setups) check_memory(s, plan.setups.size() > 1 ? StepType::train : plan.types.front());
  return plan;
}

int64_t planned_bytes(const LmSetup& setup, StepType type) {
  LmSetup s = setup;
  s.warmup = std::min<int64_t>(s.warmup, 1);  // later steps take the memory of the second
  int64_t peak = 0;
  dry_run([&] {
    LmModel model(s);
    model.run(type);
    peak = memory_stats(s.device).peak;
  });
  return peak;
}

LmModel::LmModel(const LmSetup& s) : setup_(s), params_(made_on_host(s)), model_(form_of(s, params_)) {
  Rng rng{s.seed};  // drawn on the device: no copy
  tokens_ = rand({s.batch, s.model.context}, rng, 0, double(s.model.vocab_size), DType::f32, s.device).to(DType::i64);
  sums_.emplace(params_);
}
Tensor LmModel::forward() const {
  const MatmulPrecisionScope scope(setup_.precision == Precision::tf32 ? MatmulPrecision::high
                                                                       : MatmulPrecision::highest);
  const bool narrow = setup_.precision == Precision::bf16;
  return model_.forward(tokens_, {.compute = narrow ? std::optional(DType::bf16) : std::nullopt});
}

Tensor LmModel::step(StepType type, bool phases) {
  const auto phase = [&](std::string_view name, const std::function<void()>& f) {
    std::optional<ProfileRange> range;
    if (phases) range.emplace(name);
    f();
    if (phases) synchronize(setup_.device);
  };
  Tensor scores;  // (B, T, V)
  phase("forward_pass", [&] { scores = forward(); });
  result_ = scores.detach();
  if (type == StepType::forward) return scores;
  Tensor loss;
  phase("loss_computation", [&] {  // next token: the last position has none
    const int64_t t = tokens_.size(1);
    loss = cross_entropy(slice(scores, 1, 0, t - 1), slice(tokens_, 1, 1, t));
    scores = {};
  });
  result_ = loss.detach();
  GradMap grads;
  phase("backward_pass", [&] {
    grads = backward(loss);
    if (type == StepType::backward) sums_->add(grads);
  });
  if (type == StepType::train) phase("optimizer_step", [&] { optimizer_->step(grads); });
  return {};
}

void LmModel::run(StepType type) {
  if (type == StepType::train)
    optimizer_.emplace(params_.trainable(), AdamWConfig{.lr = kLmLr, .weight_decay = kDecay, .decay_all = true});
  {
    const ProfileRange range("warmup");
    for (int64_t i = 0; i < setup_.warmup; ++i) {
      step(type, false);
      synchronize(setup_.device);
    }
  }
  Tensor tape;  // outlives the step: freeing it is not timed
  const ProfileRange range("profiled_step");
  tape = step(type, true);
}
double LmModel::checked_result(StepType type) const {
  const NoGradScope off;
  const auto x = mean(result_.to(DType::f32)).item<double>();
  TG_CHECK(std::isfinite(x), state, "[bench_lm_profile] the result of {} is {}. Its time would mean nothing.",
           name_of(type), x);
  const std::vector<Parameter> all = params_.all();
  const auto norm = std::ranges::find(all, "ln_f.weight", &Parameter::name);
  const std::vector<float> now = norm->tensor.to_vector<float>();
  // Norm weights start at 1; decay alone would move all equally.
  const auto kept = size_t(std::ranges::count(now, 1.f)), alike = size_t(std::ranges::count(now, now[0]));
  TG_CHECK(type == StepType::train ? alike < now.size() : kept == now.size(), state,
           "[bench_lm_profile] after steps of {}, {} of {} weights of {} are 1 as in the beginning, and {} are {}. "
           "Gradients of steps of train move them apart, others change none. Their time would mean nothing.",
           name_of(type), kept, now.size(), norm->name, alike, now[0]);
  return x;
}

LmRun profiled(const LmSetup& s, StepType type) {
  LmRun run{{s, type}, {}};
  reset_peak(s.device);
  Profiler profiler;
  LmModel model(s);
  model.run(type);
  run.profile = profiler.stop();
  run.result = model.checked_result(type);
  run.parameters = model.params().numel();
  run.peak_bytes = memory_stats(s.device).peak;
  return run;
}

}  // namespace tg::bench
