/// @file
/// Schedule: the learning rate of each step: a linear warm-up, then constant, or half a cosine down to min_lr
/// (Loshchilov and Hutter 2017) and constant from there. Pass at(step) to Optimizer::set_lr().
#pragma once
#include <tapegrad/models/config/suggest.h>

#include <cstdint>

namespace tg {

/// Shape after the warm-up.
enum class ScheduleKind { constant, cosine };
/// Names of shapes.
template <> inline constexpr EnumNames<2> kEnumNames<ScheduleKind>{"schedule", {"constant", "cosine"}};

/// A learning rate over time.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 3e-4;    ///< reached after the warm-up
  double min_lr = 0;   ///< cosine: final rate
  int64_t warmup = 0;  ///< steps before lr
  int64_t total = 0;   ///< cosine: step of min_lr

  /// Rate of a step, counted from 0. Warm-up: lr (step + 1) / (warmup + 1). Then constant: lr; cosine: min_lr + (lr
  /// - min_lr) (1 + cos(pi (step - warmup) / (total - warmup))) / 2, and min_lr from step `total` on.
  double at(int64_t step) const;
  /// An Error names the first wrong field: rates are finite and at least 0, warmup is at least 0; cosine needs min_lr
  /// <= lr and warmup <= total. at() calls it.
  void validate() const;
};

}  // namespace tg
