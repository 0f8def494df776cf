#include <tapegrad/core/backend.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/optim_step.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

namespace tg {
namespace {

// Streams of the seed. The parameters' are keyed by hashes of their names (Params).
constexpr uint64_t kDataStream = 1, kDropoutStream = 2;

const TrainConfig& valid(const TrainConfig& c) {
  c.validate();
  return c;
}
}  // namespace

Tensor training_logits(const Gpt& model, const TrainConfig& config, const Tensor& tokens, Rng& dropout) {
  std::optional<RecomputeScope> cheap;
  if (config.recompute == Recompute::cheap) cheap.emplace();
  return model.forward(tokens,
                       {.rng = &dropout, .compute = config.dtype, .recompute = config.recompute == Recompute::block});
}
StepGradients step_gradients(const Gpt& model, const Params& params, const TrainConfig& config,
                             std::span<const Batch> micro_batches, Rng& dropout) {
  const auto logits = [&](const Tensor& tokens) { return training_logits(model, config, tokens, dropout); };
  Accumulated a = accumulate(logits, micro_batches, model.device());
  std::vector<Tensor> all;
  for (const Parameter& p : params.trainable())
    if (const Tensor g = a.grads[p.tensor]) all.push_back(g);  // the optimiser names one that is missing
  NoGradScope off;
  const ProfileRange norm(Phase::optimizer);
  return {a.loss, all.empty() ? zeros({}) : global_norm(all), std::move(a.grads)};
}

Trainer::Trainer(const Gpt& model, const Params& params, const TokenData& data, const TrainConfig& config)
    : model_(model),
      params_(params),
      config_(valid(config)),
      data_(data.split(1 - config.val_fraction)),
      batches_(data_.train, config.batch, model.config().context, Rng{config.seed}.split(kDataStream)),
      dropout_(Rng{config.seed}.split(kDropoutStream)),
      // Runs shorter than the warm-up end inside it.
      schedule_{.kind = config.schedule,
                .lr = config.lr,
                .min_lr = config.min_lr,
                .warmup = config.warmup,
                .total = std::max(config.max_steps, config.warmup)},
      optimizer_(make_optimizer(config, params.trainable())) {
  data.check_vocabulary(model.config().vocab_size);
  if (config.val_fraction > 0) Windows(data_.val, config.batch, model.config().context);  // throws when it is too short
}

// The Error about a number that is not finite. again() computes it once more, from the same state.
void Trainer::explain(std::string_view what, double x, const StepRecord& r, const std::function<void()>& again) const {
  std::string found = "Computed once more with every op checked, it came out finite: no op can be named.";
  try {
    AnomalyScope check;
    again();
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::non_finite) throw;
    found = fmt::format("Computed once more with every op checked, this is where it began:\n{}", e.what());
  }
  const std::string advice =
      steps_ == 0
          ? "No update was made before it, so no learning rate helps: it comes of the weights that training begins "
            "with. Change the model or its init_std"
          : fmt::format("Lower the learning rate (now {}) or use more warm-up", r.lr);
  throw Error(Error::Kind::non_finite, fmt::format("[train] the {} of step {} is {}. It must be finite. {}. {}", what,
                                                   r.step, std::isnan(x) ? std::abs(x) : x, advice, found));
}

StepRecord Trainer::step() {
  return *step([] { return false; });
}
std::optional<StepRecord> Trainer::step(const std::function<bool()>& stop) {
  TG_CHECK(!done(), state, "[train] all {} steps are done. Make a new Trainer to go on.", config_.max_steps);
  const ProfileRange range("step");
  const auto start = std::chrono::steady_clock::now();
  StepRecord r;
  if (unvalidated_) {
    r = *unvalidated_;
  } else {
    r.step = steps_ + 1;
    r.lr = schedule_.at(steps_);
    update(r);
    ++steps_;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    r.ms = took.count() * 1e3;
    const double tokens = double(config_.accumulate) * double(config_.batch) * double(model_.config().context);
    r.tokens_per_s = tokens / std::max(took.count(), 1e-9);
  }
  if (unvalidated_ || (config_.evaluates_after(steps_) && config_.val_fraction > 0)) {
    unvalidated_ = r;
    r.val_loss = evaluate(stop);
    if (!r.val_loss) return std::nullopt;
    if (!std::isfinite(*r.val_loss)) explain("validation loss", *r.val_loss, r, [&] { evaluate(); });
    unvalidated_.reset();
  }
  r.peak_bytes = memory_stats(model_.device()).peak;
  return r;
}

StepGradients Trainer::gradients() {
  std::vector<Batch> micro;
  for (int64_t i = 0; i < config_.accumulate; ++i) micro.push_back(batches_.next());
  return step_gradients(model_, params_, config_, micro, dropout_);
}

void Trainer::update(StepRecord& r) {
  const Rng data = batches_.rng(), dropout = dropout_;
  const auto rewind = [&] {
    batches_.set_rng(data);
    dropout_ = dropout;
  };
  try {
    StepGradients g = gradients();
    r.loss = g.loss;
    r.grad_norm = g.norm.item<double>();
    if (!std::isfinite(g.loss) || !std::isfinite(r.grad_norm)) {
      const bool loss = !std::isfinite(g.loss);
      g.grads = {};  // their memory is for the second run
      explain(loss ? "loss" : "gradient's norm", loss ? g.loss : r.grad_norm, r, [&] {
        rewind();
        gradients();
      });
    }
    optimizer_->set_lr(optimizer_lr(config_, r.lr));
    optimizer_->step(g.grads, {.clip_norm = config_.clip_norm, .norm = g.norm});
  } catch (...) {
    rewind();
    throw;
  }
}

void Trainer::run(const std::function<void(const StepRecord&)>& on_step) {
  while (!done()) {
    const StepRecord r = step();
    if (on_step) on_step(r);
  }
}

double Trainer::evaluate() const {
  return *evaluate([] { return false; });
}
std::optional<double> Trainer::evaluate(const std::function<bool()>& stop) const {
  const ProfileRange range("validation");
  NoGradScope off;
  Windows windows(data_.val, config_.batch, model_.config().context);
  double sum = 0;
  for (Batch batch; windows.next(batch);) {
    if (stop()) return std::nullopt;
    const Tensor scores = model_.forward(batch.tokens.to(model_.device()), {.compute = config_.dtype});  // (B, T, V)
    sum += cross_entropy(scores, batch.targets.to(model_.device())).item<double>() * double(batch.targets.numel());
  }
  return sum / double(windows.targets());
}

namespace {
constexpr std::string_view kModel = "model.";
std::string prefix_of(const Optimizer& o) { return fmt::format("{}.", o.name()); }

StateDict with_prefix(std::string_view prefix, const StateDict& tensors) {
  StateDict r;
  for (const auto& [name, t] : tensors) r[fmt::format("{}{}", prefix, name)] = t;
  return r;
}
StateDict without_prefix(std::string_view prefix, const StateDict& tensors) {
  StateDict r;
  for (const auto& [name, t] : tensors)
    if (name.starts_with(prefix)) r[name.substr(prefix.size())] = t;
  return r;
}
// An Error that names the first tensor that differs: those of the model in its order, then the others by name.
void check_fits(const StateDict& given, const StateDict& own, const std::vector<Parameter>& parameters) {
  constexpr const char* kRule =
      "A state fits the configuration of model and optimiser that it was saved with. Make the trainer with that one.";
  std::vector<std::string> order;
  for (const Parameter& p : parameters) order.push_back(fmt::format("{}{}", kModel, p.name));
  for (const auto& [name, t] : own)
    if (!name.starts_with(kModel)) order.push_back(name);
  for (const std::string& name : order) {
    const auto it = given.find(name);
    const Layout& here = own.at(name).layout();
    TG_CHECK(it != given.end() && it->second, value, "[train] the state has no '{}', which is {} here. {}", name, here,
             kRule);
    TG_CHECK(it->second.shape() == here.shape && it->second.dtype() == here.dtype, shape,
             "[train] '{}' is {} in the state and {} here. {}", name, it->second.layout(), here, kRule);
  }
  for (const auto& [name, t] : given)
    TG_CHECK(own.contains(name), value, "[train] '{}' of the state is nothing that this trainer has. {}", name, kRule);
}
}  // namespace

TrainerState Trainer::state() const {
  TrainerState s{.step = steps_,
                 .optimizer_steps = optimizer_->steps(),
                 .data = batches_.rng(),
                 .dropout = dropout_,
                 .tensors = with_prefix(kModel, params_.state()),
                 .unvalidated = unvalidated_};
  s.tensors.merge(with_prefix(prefix_of(*optimizer_), optimizer_->state()));
  return s;
}
void Trainer::load_state(const TrainerState& s) {
  TG_CHECK(s.step >= 0 && s.step <= config_.max_steps, value,
           "[train] the state is one after {} steps, and max_steps is {}. It must be at least that. Raise max_steps.",
           s.step, config_.max_steps);
  check_fits(s.tensors, state().tensors, params_.all());
  optimizer_->load_state(without_prefix(prefix_of(*optimizer_), s.tensors), s.optimizer_steps);  // checks, then assigns
  params_.assign(without_prefix(kModel, s.tensors));                                             // cannot fail any more
  batches_.set_rng(s.data);
  dropout_ = s.dropout;
  steps_ = s.step;
  unvalidated_ = s.unvalidated;
}

}  // namespace tg
