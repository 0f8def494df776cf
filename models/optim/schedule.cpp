#include <tapegrad/core/check.h>
#include <tapegrad/models/optim/schedule.h>

#include <cmath>
#include <numbers>

namespace tg {

double Schedule::at(int64_t step) const {
  validate();
  TG_CHECK(step >= 0, value, "[schedule] step is {}. Steps count from 0.", step);
  if (step < warmup) return lr * (double(step) + 1) / (double(warmup) + 1);
  if (kind == ScheduleKind::constant) return lr;
  if (step >= total) return min_lr;
  const double done = double(step - warmup) / double(total - warmup);
  return min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (lr - min_lr);
}
void Schedule::validate() const {
  TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[schedule] lr is {}. It must be finite and 0 or more.", lr);
  TG_CHECK(warmup >= 0, value, "[schedule] warmup is {}. It must be 0 or more.", warmup);
  if (kind == ScheduleKind::constant) return;
  TG_CHECK(min_lr >= 0 && min_lr <= lr, value, "[schedule] min_lr is {} and lr {}. min_lr must be in [0, lr].", min_lr,
           lr);
  TG_CHECK(total >= warmup, value, "[schedule] total is {} and warmup {}. Warm-up must end before the schedule does.",
           total, warmup);
}

}  // namespace tg
