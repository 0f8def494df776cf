#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/loss.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tg {
namespace {

// Streams of the seed. The parameters' are keyed by hashes of their names (Params).
constexpr uint64_t kDataStream = 1, kDropoutStream = 2;

const TrainConfig& valid(const TrainConfig& c) {
  c.validate();
  return c;
}
}  // namespace

Trainer::Trainer(const Gpt& model, const Params& params, const TokenData& data, const TrainConfig& config)
    : model_(model),
      config_(valid(config)),
      data_(data.split(1 - config.val_fraction)),
      batches_(data_.train, config.batch, model.config().context, Rng{config.seed}.split(kDataStream)),
      dropout_(Rng{config.seed}.split(kDropoutStream)),
      // Runs shorter than the warm-up end inside it.
      schedule_{.lr = config.lr,
                .min_lr = config.min_lr,
                .warmup = config.warmup,
                .total = std::max(config.max_steps, config.warmup)},
      optimizer_(params.trainable(), {.lr = config.lr,
                                      .beta1 = config.beta1,
                                      .beta2 = config.beta2,
                                      .eps = config.eps,
                                      .weight_decay = config.weight_decay}) {
  data.check_vocabulary(model.config().vocab_size);
  if (config.val_fraction > 0) Windows(data_.val, config.batch, model.config().context);  // throws when it is too short
}

namespace {
void check_finite(std::string_view what, double x, const StepRecord& r) {
  TG_CHECK(std::isfinite(x), value,
           "[train] the {} of step {} is {}. It must be finite. Lower the learning rate (now {}) or use more warm-up.",
           what, r.step, x, r.lr);
}
}  // namespace

StepRecord Trainer::step() {
  TG_CHECK(!done(), state, "[train] all {} steps are done. Make a new Trainer to go on.", config_.max_steps);
  const auto start = std::chrono::steady_clock::now();
  StepRecord r;
  r.step = steps_ + 1;
  r.lr = schedule_.at(steps_);
  update(r);
  ++steps_;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  r.ms = took.count() * 1e3;
  r.tokens_per_s = double(config_.batch * model_.config().context) / std::max(took.count(), 1e-9);
  const bool due = done() || (config_.eval_every > 0 && steps_ % config_.eval_every == 0);
  if (due && config_.val_fraction > 0) {
    r.val_loss = evaluate();
    check_finite("validation loss", *r.val_loss, r);
  }
  r.peak_bytes = memory_stats(model_.device()).peak;
  return r;
}

void Trainer::update(StepRecord& r) {
  GradMap grads;
  {  // the tape ends here
    const Batch batch = batches_.next();
    const Device device = model_.device();
    const Tensor loss =
        cross_entropy(model_.forward(batch.tokens.to(device), {.rng = &dropout_}), batch.targets.to(device));
    r.loss = loss.item<double>();
    check_finite("loss", r.loss, r);
    grads = backward(loss);
  }
  r.grad_norm = optimizer_.step(grads, {.clip_norm = config_.clip_norm, .lr = r.lr}).item<double>();
  check_finite("gradient's norm", r.grad_norm, r);
}

void Trainer::run(const std::function<void(const StepRecord&)>& on_step) {
  while (!done()) {
    const StepRecord r = step();
    if (on_step) on_step(r);
  }
}

double Trainer::evaluate() const {
  NoGrad off;
  Windows windows(data_.val, config_.batch, model_.config().context);
  double sum = 0;
  for (Batch batch; windows.next(batch);) {
    const Tensor logits = model_.forward(batch.tokens.to(model_.device()));
    sum += cross_entropy(logits, batch.targets.to(model_.device())).item<double>() * double(batch.targets.numel());
  }
  return sum / double(windows.targets());
}

}  // namespace tg
