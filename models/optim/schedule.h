// Schedule: the learning rate of each step: linear warm-up, then constant, or half a cosine down to min_lr (Loshchilov
// and Hutter 2017) and constant from there. Pure arithmetic; pass at(step) to AdamW::step. Used by the trainer.
#pragma once
#include <tapegrad/core/error.h>

#include <cmath>
#include <numbers>

namespace tg {

enum class ScheduleKind { constant, cosine };  // after the warm-up

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 3e-4;    // after the warm-up
  double min_lr = 0;   // cosine: the rate at the end
  int64_t warmup = 0;  // steps before lr is reached; 0: none
  int64_t total = 0;   // cosine: the step at which min_lr is reached

  // Steps count from 0. warmup > step: lr (step + 1) / (warmup + 1). Then lr; or, of a cosine, min_lr when
  // total <= step, and between them min_lr + (lr - min_lr) (1 + cos(pi (step - warmup) / (total - warmup))) / 2.
  double at(int64_t step) const {
    validate();
    TG_CHECK(step >= 0, value, "[schedule] step is {}. Steps count from 0.", step);
    if (step < warmup) return lr * double(step + 1) / double(warmup + 1);
    if (kind == ScheduleKind::constant) return lr;
    if (step >= total) return min_lr;
    const double done = double(step - warmup) / double(total - warmup);
    return min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (lr - min_lr);
  }
  void validate() const {
    TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[schedule] lr is {}. It must be finite and 0 or more.", lr);
    TG_CHECK(warmup >= 0, value, "[schedule] warmup is {}. It must be 0 or more.", warmup);
    if (kind == ScheduleKind::constant) return;
    TG_CHECK(min_lr >= 0 && min_lr <= lr, value, "[schedule] min_lr is {} and lr {}. min_lr must be in [0, lr].",
             min_lr, lr);
    TG_CHECK(total >= warmup, value, "[schedule] total is {} and warmup {}. Warm-up must end before the schedule does.",
             total, warmup);
  }
};

}  // namespace tg
