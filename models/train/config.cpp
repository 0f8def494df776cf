#include <tapegrad/core/error.h>
#include <tapegrad/models/train/config.h>

#include <cmath>
#include <limits>

namespace tg {
namespace {

void at_least(const char* name, int64_t value, int64_t least) {
  TG_CHECK(value >= least, value, "[train] {} is {}. It must be at least {}.", name, value, least);
}
// An interval that may leave out its upper end; NaN is outside.
void within(const char* name, double value, double low, double high, bool high_too) {
  TG_CHECK(value >= low && (value < high || (high_too && value == high)), value,
           "[train] {} is {}. It must lie in [{}, {}{}", name, value, low, high, high_too ? "]." : ").");
}

void one_of(const char* name, const std::string& value, std::string_view first, std::string_view second) {
  TG_CHECK(value == first || value == second, value, "[train] {} is '{}'. It must be {} or {}.", name, value, first,
           second);
}

}  // namespace

void TrainConfig::validate() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  at_least("batch", batch, 1);
  one_of("schedule", schedule, "cosine", "constant");
  one_of("dtype", dtype, "f32", "bf16");
  one_of("recompute", recompute, "none", "block");
  at_least("accumulate", accumulate, 1);
  at_least("max_steps", max_steps, 1);
  at_least("warmup", warmup, 0);
  at_least("eval_every", eval_every, 0);
  at_least("checkpoint_every", checkpoint_every, -1);
  within("lr", lr, 0, kInfinity, false);
  within("min_lr", min_lr, 0, lr, true);
  within("beta1", beta1, 0, 1, false);
  within("beta2", beta2, 0, 1, false);
  within("weight_decay", weight_decay, 0, kInfinity, false);
  within("clip_norm", clip_norm, 0, kInfinity, false);
  within("val_fraction", val_fraction, 0, 1, false);
  TG_CHECK(eps > 0 && std::isfinite(eps), value, "[train] eps is {}. It must be a positive number.", eps);
}

bool TrainConfig::evaluates_after(int64_t step) const {
  return step == max_steps || (eval_every > 0 && step % eval_every == 0);
}
bool TrainConfig::saves_after(int64_t step) const {
  if (checkpoint_every < 0) return evaluates_after(step);
  return step == max_steps || (checkpoint_every > 0 && step % checkpoint_every == 0);
}

}  // namespace tg
