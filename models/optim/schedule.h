/// @file
/// Schedule: the learning rate of each step: linear warm-up, then constant, or half a cosine down to min_lr (Loshchilov
/// and Hutter 2017) and constant from there. Pure arithmetic; pass at(step) to AdamW::step. Used by the trainer.
#pragma once
#include <cstdint>
#include <string_view>

namespace tg {

enum class ScheduleKind { constant, cosine };  ///< after the warm-up
std::string_view name_of(ScheduleKind);
ScheduleKind schedule_from_name(std::string_view);  ///< an Error lists the names

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 3e-4;    ///< after the warm-up
  double min_lr = 0;   ///< cosine: the rate at the end
  int64_t warmup = 0;  ///< steps before lr is reached; 0: none
  int64_t total = 0;   ///< cosine: the step at which min_lr is reached

  /// Steps count from 0. warmup > step: lr (step + 1) / (warmup + 1). Then lr; or, of a cosine, min_lr when
  /// total <= step, and between them min_lr + (lr - min_lr) (1 + cos(pi (step - warmup) / (total - warmup))) / 2.
  double at(int64_t step) const;
  void validate() const;  ///< an Error names the field that is wrong
};

}  // namespace tg
