#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/optim/sgd.h>
#include <tapegrad/models/train/config.h>

#include <charconv>
#include <cmath>
#include <ranges>
#include <vector>

namespace tg {
namespace {

constexpr uint64_t kRoundingStream = 3;
constexpr std::string_view kComputeTypes[] = {"f32", "bf16"};
double number_in(const char* name, std::string_view setting, std::string_view word) {
  double x = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), x);
  TG_CHECK(error == std::errc() && end == word.data() + word.size() && std::isfinite(x), value,
           "[train] {} is '{}', and '{}' in it is no number.", name, setting, word);
  return x;
}
NewtonSchulz newton_schulz(const std::string& setting) {
  std::vector<double> all;
  for (const auto word : setting | std::views::split(','))
    all.push_back(number_in("muon_coefficients", setting, std::string_view(word.begin(), word.end())));
  TG_CHECK(all.size() == 3, value, "[train] muon_coefficients is '{}'. It must be three numbers: a,b,c.", setting);
  return {all[0], all[1], all[2]};
}
std::vector<ParameterGroup> groups_of(const std::string& setting) {
  std::vector<ParameterGroup> groups;
  for (const auto part : setting | std::views::split(',')) {
    const std::string_view word(part.begin(), part.end());
    const size_t at = word.rfind('=');
    TG_CHECK(at != word.npos && at > 0, value,
             "[train] lr_groups is '{}', and '{}' in it is no pattern=rate, such as wte.weight=0.3.", setting, word);
    const double rate = number_in("lr_groups", setting, word.substr(at + 1));
    TG_CHECK(rate >= 0, value, "[train] lr_groups is '{}', and the rate {} in it is below 0.", setting, rate);
    groups.push_back({.pattern = std::string(word.substr(0, at)), .lr = rate});
  }
  return groups;
}
constexpr int64_t kMostCount = int64_t(1) << 53;  // no overflow in sums of two; exact in doubles

void at_least(const char* name, int64_t value, int64_t least) {
  TG_CHECK(value >= least, value, "[train] {} is {}. It must be at least {}.", name, value, least);
  TG_CHECK(value <= kMostCount, value, "[train] {} is {}. It must be at most 2^53, which is {}.", name, value,
           kMostCount);
}

}  // namespace

void from_name(std::string_view name, DType& to) {
  to = detail::dtype_from_name(kComputeTypes[detail::known_place("dtype", name, kComputeTypes)]);
}

void TrainConfig::validate() const {
  at_least("batch", batch, 1);
  at_least("window", window, 0);
  TG_CHECK(!dtype || dtype == DType::f32 || dtype == DType::bf16, value, "[train] dtype is {}. It must be f32 or bf16.",
           *dtype);
  at_least("accumulate", accumulate, 1);
  at_least("max_steps", max_steps, 1);
  at_least("warmup", warmup, 0);
  at_least("eval_every", eval_every, 0);
  at_least("checkpoint_every", checkpoint_every, -1);
  detail::check_rate("train", "lr", lr);
  detail::check_rate("train", "min_lr", min_lr);
  at_least("hold", hold, 0);
  TG_CHECK(cooldown > 0 && cooldown <= 1, value, "[train] cooldown is {}. It must be in (0, 1].", cooldown);
  TG_CHECK(schedule == ScheduleKind::constant || min_lr <= lr, value,
           "[train] min_lr is {} and lr {}. The rate falls from lr to min_lr, which must be in [0, lr]. Set both, "
           "or use the constant schedule.",
           min_lr, lr);
  detail::check_fraction("train", "beta1", beta1);
  detail::check_fraction("train", "beta2", beta2);
  detail::check_rate("train", "weight_decay", weight_decay);
  TG_CHECK(moments == DType::f32 || (moments == DType::bf16 && optimizer != OptimizerKind::sgd), value,
           "[train] moments is {}, and the optimizer {}. It must be f32, or bf16 for adamw or muon.", moments,
           name_of(optimizer));
  TG_CHECK(!split_weights || (optimizer == OptimizerKind::adamw && dtype == DType::bf16 && linear == LinearKind::plain),
           value,
           "[train] split_weights is true, the optimizer {}, dtype {} and linear {}. It needs adamw, bf16 and plain.",
           name_of(optimizer), dtype.value_or(DType::f32), name_of(linear));
  detail::check_fraction("train", "momentum", momentum);
  TG_CHECK(optimizer != OptimizerKind::sgd || !nesterov || momentum > 0, value,
           "[train] nesterov is true and momentum 0. SGD looks ahead by its momentum: set it, or nesterov to false.");
  if (optimizer == OptimizerKind::muon) {
    TG_CHECK(muon_lr > 0 && std::isfinite(muon_lr), value, "[train] muon_lr is {}. It must be a positive number.",
             muon_lr);
    TG_CHECK(lr > 0, value,
             "[train] lr is 0 and the optimizer muon, whose rates are relative to it. It must be above 0.");
  }
  TG_CHECK(muon_dtype == DType::bf16 || muon_dtype == DType::f32 || muon_dtype == DType::f64, value,
           "[train] muon_dtype is {}. It must be bf16 or f32, or f64 over f64 parameters.", muon_dtype);
  at_least("muon_steps", muon_steps, 1);
  (void)newton_schulz(muon_coefficients);
  if (muon_weight_decay != -1) detail::check_rate("train", "muon_weight_decay", muon_weight_decay);
  TG_CHECK(groups_of(lr_groups).empty() || lr > 0, value, "[train] lr is 0, and lr_groups is '{}'. It must be above 0.",
           lr_groups);
  detail::check_rate("train", "clip_norm", clip_norm);
  detail::check_fraction("train", "val_fraction", val_fraction);
  TG_CHECK(eps > 0 && std::isfinite(eps), value, "[train] eps is {}. It must be a positive number.", eps);
}

int64_t TrainConfig::micro_batches_of_rank(int64_t ranks) const {
  TG_CHECK(ranks >= 1, value, "[train] {} ranks. There must be 1 or more.", ranks);
  TG_CHECK(accumulate % ranks == 0, value,
           "[train] accumulate is {}, and there are {} ranks. They share the micro-batches of a step equally: it must "
           "be a multiple of {}. Change either.",
           accumulate, ranks, ranks);
  return accumulate / ranks;
}

std::unique_ptr<Optimizer> detail::make_optimizer(const TrainConfig& c, std::vector<Parameter> parameters,
                                                  const std::shared_ptr<Communicator>& comm) {
  const std::shared_ptr<Communicator> shared = c.shard_optimizer ? comm : nullptr;
  const AdamWConfig adamw{.lr = c.lr,
                          .beta1 = c.beta1,
                          .beta2 = c.beta2,
                          .eps = c.eps,
                          .weight_decay = c.weight_decay,
                          .decay_all = c.decay_all,
                          .skip_non_finite = c.compile,
                          .moments = c.moments == DType::bf16 ? std::optional(c.moments) : std::nullopt,
                          .seed = Rng{c.seed}.split(kRoundingStream).seed};
  const std::vector<ParameterGroup> groups = groups_of(c.lr_groups);
  switch (c.optimizer) {
    case OptimizerKind::adamw: return std::make_unique<AdamW>(std::move(parameters), adamw, groups, shared);
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(std::move(parameters),
                                   SgdConfig{.lr = c.lr,
                                             .momentum = c.momentum,
                                             .weight_decay = c.weight_decay,
                                             .decay_all = c.decay_all,
                                             .nesterov = c.nesterov,
                                             .skip_non_finite = c.compile},
                                   groups, shared);
    case OptimizerKind::muon: break;
  }
  return std::make_unique<Muon>(
      std::move(parameters),
      MuonConfig{.lr = c.muon_lr,
                 .momentum = c.momentum,
                 .nesterov = c.nesterov,
                 .weight_decay = c.muon_weight_decay == -1 ? c.weight_decay : c.muon_weight_decay,
                 .ns_steps = c.muon_steps,
                 .ns = newton_schulz(c.muon_coefficients),
                 .ns_dtype = c.muon_dtype,
                 .scale = c.muon_scale,
                 .adamw = adamw},
      groups, shared);
}
double detail::optimizer_lr(const TrainConfig& c, double lr) {
  return c.optimizer == OptimizerKind::muon ? lr * (c.muon_lr / c.lr) : lr;
}

int64_t TrainConfig::window_in(int64_t context) const {
  TG_CHECK(window <= context, value,
           "[train] window is {}, and the model's context is {}. A window is at most that long: lower it, or pass 0 "
           "for the context.",
           window, context);
  return window ? window : context;
}
bool TrainConfig::evaluates_after(int64_t step) const {
  return step == max_steps || (eval_every > 0 && step % eval_every == 0);
}
bool TrainConfig::saves_after(int64_t step) const {
  if (checkpoint_every < 0) return evaluates_after(step);
  return step == max_steps || (checkpoint_every > 0 && step % checkpoint_every == 0);
}

}  // namespace tg
