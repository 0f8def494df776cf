#include <tapegrad/core/check.h>
#include <tapegrad/models/optim/schedule.h>

#include <cmath>
#include <numbers>

namespace tg {
namespace {
// (1 + cos(pi x)) / 2 for x in [0, 1], without std, as the square of a cosine or sine of at most pi / 4.
double half_cosine(double x) {
  const bool first = x <= 0.5;
  const double a = std::numbers::pi / 2 * (first ? x : 1 - x);
  double sum = 0;
  for (int k = 18; k > 0; k -= 2) sum = -(1 + sum) * a * a / double(first ? k * (k - 1) : k * (k + 1));
  const double y = first ? 1 + sum : a + a * sum;
  return y * y;
}
}  // namespace

double Schedule::at(int64_t step) const {
  validate();
  TG_CHECK(step >= 0, value, "[schedule] step is {}. Steps count from 0.", step);
  if (step < warmup) return lr * (double(step) + 1) / (double(warmup) + 1);
  if (kind == ScheduleKind::constant) return lr;
  if (step >= total) return min_lr;
  if (kind == ScheduleKind::wsd) {
    const double left = double(total - step) / (cooldown * double(total));
    return left >= 1 ? lr : min_lr + left * (lr - min_lr);
  }
  const int64_t start = warmup + hold;
  if (step < start) return lr;
  const double done = double(step - start) / double(total - start);
  return min_lr + half_cosine(done) * (lr - min_lr);
}
void Schedule::validate() const {
  TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[schedule] lr is {}. It must be finite and 0 or more.", lr);
  TG_CHECK(warmup >= 0, value, "[schedule] warmup is {}. It must be 0 or more.", warmup);
  if (kind == ScheduleKind::constant) return;
  TG_CHECK(min_lr >= 0 && min_lr <= lr, value, "[schedule] min_lr is {} and lr {}. min_lr must be in [0, lr].", min_lr,
           lr);
  TG_CHECK(hold >= 0 && cooldown > 0 && cooldown <= 1, value,
           "[schedule] hold is {} and cooldown {}. They must be 0 or more, and in (0, 1].", hold, cooldown);
  TG_CHECK(total - hold >= warmup, value,
           "[schedule] total is {}, warmup {} and hold {}. Both must end before the schedule does.", total, warmup,
           hold);
}

}  // namespace tg
