#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/models/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tg {
namespace {

// Streams of the seed; 3 is of rounding. Params keys the parameters' streams by hashes of their names.
constexpr uint64_t kDataStream = 1, kDropoutStream = 2;

BatchSource windows_of(const Model& model, const TokenData& data, const TrainConfig& config) {
  TG_CHECK(model.context() > 0, value,
           "[train] the model has no context(), the number of tokens in a window. Add that member, or pass "
           "a BatchSource, such as token_batches().");
  BatchSource source =
      token_batches(data.split(1 - config.val_fraction), config.batch, config.window_in(model.context()),
                    config.val_fraction > 0 || data.validation(), config.order, config.accumulate);
  if (model.vocab_size() > 0) data.check_vocabulary(model.vocab_size());
  return source;
}
std::string not_finite(std::string_view what, double x, const StepRecord& r) {
  return fmt::format("the {} of step {} is {}. It must be finite", what, r.step, std::isnan(x) ? std::abs(x) : x);
}
}  // namespace

ValidationLoss validation_loss(const Model& model, const std::function<std::optional<Batch>(int64_t)>& batches,
                               const ValidationOptions& o) {
  NoGradScope off;
  ValidationLoss e;
  const int64_t ranks = o.comm->size();
  std::vector<double> mine;  // losses of every ranks-th batch
  int64_t i = 0;
  for (std::optional<Batch> batch; (batch = batches(i)); ++i) {
    if ((e.stopped = o.stop && o.stop())) break;
    const int64_t kept = batch->num_targets();
    e.targets += kept;
    if (i % ranks != o.comm->rank()) continue;
    mine.push_back(kept == 0 ? 0
                             : model.loss(batch->to(o.device), {.compute = o.compute}).item<double>() * double(kept));
  }
  const int64_t each = (i + ranks - 1) / ranks;
  mine.resize(size_t(each));
  std::vector<double> all(size_t(each * ranks));
  o.comm->all_gather(mine.data(), all.data(), mine.size() * sizeof(double));
  double sum = 0;
  for (int64_t b = 0; b < i; ++b) sum += all[size_t(b % ranks * each + b / ranks)];
  TG_CHECK(e.targets > 0 || e.stopped, value,
           "[validation_loss] {} batches without a kept target. A mean needs at least one. Check the targets; "
           "Batch::kIgnoreIndex marks those that are ignored.",
           i);
  e.loss = sum / double(std::max<int64_t>(e.targets, 1));
  return e;
}

Model detail::with_linears(Model model, const Params& params, const TrainConfig& config) {
  if (config.split_weights) {
    bool any = false;
    for (const NamedLinear& l : model.linears())
      if (l.layer->weight) any |= params.split(l.layer->weight);
    TG_CHECK(any, value, "[train] split_weights: no trained parameter is a Linear layer's weight. Leave it out.");
  }
  if (config.linear == LinearKind::plain) return model;
  std::vector<std::string> names;
  for (const NamedLinear& l : model.linears())
    if (l.name != "lm_head" && !l.whole) names.push_back(l.name);
  replace_linears(model, names, config.linear);
  return model;
}
Trainer::Trainer(const Model& model, const Params& params, BatchSource data, const TrainConfig& config,
                 std::shared_ptr<Communicator> comm)
    : model_(detail::with_linears(model, params, detail::valid(config))),
      params_(params),
      config_(config),
      comm_(std::move(comm)),
      data_(std::move(data)),
      data_rng_(Rng{config.seed}.split(kDataStream)),
      // Runs shorter than the warm-up end inside it.
      schedule_{.kind = config.schedule,
                .lr = config.lr,
                .min_lr = config.min_lr,
                .warmup = config.warmup,
                .hold = config.hold,
                .cooldown = config.cooldown,
                .total = std::max(config.max_steps, config.warmup + config.hold)},
      step_(std::make_unique<TrainStep>(model_, params, config, comm_)) {
  step_->dropout = Rng{config.seed}.split(kDropoutStream);
  TG_CHECK(data_.next, value, "[train] the BatchSource has no next(). Training needs batches: set it.");
}
Trainer::Trainer(const Model& model, const Params& params, const TokenData& data, const TrainConfig& config,
                 std::shared_ptr<Communicator> comm)
    : Trainer(model, params, windows_of(model, data, detail::valid(config)), config, std::move(comm)) {}

// Throws the Error about a non-finite number. again() repeats the step from the same state.
void Trainer::explain(const std::string& what, const StepRecord& r, const std::function<void()>& again) const {
  std::string found = "Recomputed with every op checked, it was finite: no op can be named.";
  try {
    AnomalyScope check;
    again();
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::non_finite) throw;
    found = fmt::format("Recomputed with every op checked, this is where it began:\n{}", e.what());
  }
  const std::string advice =
      steps_ == 0 ? "No update was made before it, so no learning rate helps: it comes from the initial weights. "
                    "Change the model or its init_std"
      : config_.optimizer == OptimizerKind::muon
          ? fmt::format(
                "Lower muon_lr, the rate of the hidden matrices (now {:.3g}), or lr, that of all others (now "
                "{:.3g}), or use more warm-up",
                detail::optimizer_lr(config_, r.lr), r.lr)
          : fmt::format("Lower the learning rate (now {}) or use more warm-up", r.lr);
  throw Error(Error::Kind::non_finite, fmt::format("[train] {}. {}. {}", what, advice, found));
}

StepRecord Trainer::step() {
  return *step([] { return false; });
}
std::optional<StepRecord> Trainer::step(const std::function<bool()>& stop) {
  TG_CHECK(!done(), state, "[train] all {} steps are done. Make a new Trainer to continue.", config_.max_steps);
  const auto start = std::chrono::steady_clock::now();
  StepRecord r;
  if (unvalidated_) {
    r = *unvalidated_;
  } else {
    const ProfileRange range("step");
    r.step = steps_ + 1;
    r.lr = schedule_.at(steps_);
    const auto targets = double(update(r));
    ++steps_;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    r.ms = took.count() * 1e3;
    r.tokens_per_s = targets / std::max(took.count(), 1e-9);
  }
  if (unvalidated_ || (config_.evaluates_after(steps_) && data_.validation)) {
    unvalidated_ = r;
    try {
      r.val_loss = validation_loss(stop);
    } catch (const Error& e) {
      if (e.kind() != Error::Kind::non_finite) throw;
      explain(
          fmt::format("the validation after step {} computes a number that is not finite. All must be finite", r.step),
          r, [&] {
            const MatmulPrecisionScope precision(config_.matmul_precision);
            tg::validation_loss(model_, data_.validation, {params_.device(), config_.dtype});
          });
    }
    if (!r.val_loss) return std::nullopt;
    if (!std::isfinite(*r.val_loss))
      explain(not_finite("validation loss", *r.val_loss, r), r, [&] { validation_loss(); });
    unvalidated_.reset();
  }
  r.peak_bytes = memory_stats(params_.device()).peak;
  return r;
}

int64_t Trainer::update(StepRecord& r) {
  const Rng data = data_rng_, dropout = step_->dropout;
  try {
    std::vector<Batch> all;
    for (int64_t i = 0; i < config_.accumulate; ++i) all.push_back(data_.next(data_rng_));
    const MicroBatches micro(all);
    TrainStep::Outcome o;
    try {
      o = step_->run(micro, r.lr);
    } catch (const Error& e) {  // an op rejected a non-finite number on this rank alone
      if (e.kind() != Error::Kind::non_finite) throw;
      explain(fmt::format("step {} computes a number that is not finite. All must be finite", r.step), r, [&] {
        step_->dropout = dropout;
        step_->search(micro);
      });
    }
    if (!o.finite()) {
      const bool norm = std::isfinite(o.loss);
      explain(norm ? not_finite("gradient's norm", o.grad_norm, r) : not_finite("loss", o.loss, r), r, [&] {
        step_->dropout = dropout;
        step_->gradients(micro);
      });
    }
    r.loss = o.loss, r.grad_norm = o.grad_norm;
    return micro.targets;
  } catch (...) {
    data_rng_ = data, step_->dropout = dropout;
    throw;
  }
}

void Trainer::run(const std::function<void(const StepRecord&)>& on_step) {
  while (!done()) {
    const StepRecord r = step();
    if (on_step) on_step(r);
  }
}

double Trainer::validation_loss() const {
  return *validation_loss([] { return false; });
}
std::optional<double> Trainer::validation_loss(const std::function<bool()>& stop) const {
  TG_CHECK(data_.validation, state,
           "[train] there is no validation part. Set val_fraction or BatchSource::validation.");
  const ProfileRange range("validation");
  std::optional<WorkScope> apart;  // work of steps excludes the validation
  if (detail::t_work) apart.emplace();
  const MatmulPrecisionScope precision(config_.matmul_precision);
  const ValidationLoss e =
      tg::validation_loss(model_, data_.validation, {params_.device(), config_.dtype, stop, comm_});
  return e.stopped ? std::nullopt : std::optional(e.loss);
}

TrainerState Trainer::state(const StateDict& own) const {
  TrainerState s = training_state(steps_, params_, step_->optimizer(), data_rng_, step_->dropout, own);
  s.unvalidated = unvalidated_;
  return s;
}
void Trainer::load_state(const TrainerState& s, const StateDict& own) {
  TG_CHECK(s.step >= 0 && s.step <= config_.max_steps, value,
           "[train] the state was saved after {} steps, and max_steps is {}. It must not be less. Raise max_steps.",
           s.step, config_.max_steps);
  restore(s, params_, step_->optimizer(), own);
  data_rng_ = s.data;
  step_->dropout = s.dropout;
  steps_ = s.step;
  unvalidated_ = s.unvalidated;
}

}  // namespace tg
