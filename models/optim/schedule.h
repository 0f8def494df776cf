/// @file
/// Schedule: the learning rate of each step: a linear warm-up, then constant, half a cosine down to min_lr (Loshchilov
/// and Hutter 2017), or constant and then linear down to min_lr (Zhai et al., 2022). Pass at(step) to
/// Optimizer::set_lr().
#pragma once
#include <tapegrad/models/config/suggest.h>

#include <cstdint>

namespace tg {

/// Shape after the warm-up.
enum class ScheduleKind { constant, cosine, wsd };
/// Names of shapes.
template <> inline constexpr EnumNames<3> kEnumNames<ScheduleKind>{"schedule", {"constant", "cosine", "wsd"}};

/// A learning rate over time.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 3e-4;       ///< reached after the warm-up
  double min_lr = 0;      ///< cosine, wsd: final rate
  int64_t warmup = 0;     ///< steps before lr
  int64_t hold = 0;       ///< cosine: steps at lr after the warm-up
  double cooldown = 0.2;  ///< wsd: falling last part of the steps
  int64_t total = 0;      ///< cosine, wsd: step of min_lr

  /// Rate of a step, counted from 0. Warm-up: lr (step + 1) / (warmup + 1). Then constant: lr; cosine: lr, and from
  /// step s = warmup + hold on min_lr + (lr - min_lr) (1 + cos(pi (step - s) / (total - s))) / 2; wsd: lr, or less:
  /// min_lr + (lr - min_lr) (total - step) / (cooldown total). Both are min_lr from step `total` on.
  double at(int64_t step) const;
  /// An Error names the first wrong field: rates are finite and at least 0, warmup and hold are at least 0; cosine and
  /// wsd need min_lr <= lr and warmup + hold <= total, wsd a cooldown in (0, 1]. at() calls it.
  void validate() const;
};

}  // namespace tg
