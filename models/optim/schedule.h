// Schedule: the learning rate of each step: linear warm-up, then half a cosine down to min_lr (Loshchilov and Hutter
// 2017), then constant. Pure arithmetic; pass at(step) to AdamW::step. Used by the trainer.
#pragma once
#include <tapegrad/core/error.h>

#include <cmath>
#include <numbers>

namespace tg {

struct Schedule {
  double lr = 3e-4, min_lr = 0;  // after warm-up, and at the end; equal: constant
  int64_t warmup = 0;            // steps before lr is reached
  int64_t total = 0;             // the step at which min_lr is reached

  // Steps count from 0. warmup > step: lr (step + 1) / (warmup + 1); total <= step: min_lr; between them the cosine.
  double at(int64_t step) const {
    validate();
    TG_CHECK(step >= 0, value, "[schedule] step is {}. Steps count from 0.", step);
    if (step < warmup) return lr * double(step + 1) / double(warmup + 1);
    if (step >= total) return min_lr;
    const double done = double(step - warmup) / double(total - warmup);
    return min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (lr - min_lr);
  }
  void validate() const {
    TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[schedule] lr is {}. It must be finite and 0 or more.", lr);
    TG_CHECK(min_lr >= 0 && min_lr <= lr, value, "[schedule] min_lr is {} and lr {}. min_lr must be in [0, lr].",
             min_lr, lr);
    TG_CHECK(warmup >= 0, value, "[schedule] warmup is {}. It must be 0 or more.", warmup);
    TG_CHECK(total >= warmup, value, "[schedule] total is {} and warmup {}. Warm-up must end before the schedule does.",
             total, warmup);
  }
};

}  // namespace tg
