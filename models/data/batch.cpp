#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/data/batch.h>

#include <algorithm>
#include <atomic>

namespace tg {

int64_t Batch::num_targets() const {
  if (detail::running_dry()) return targets.numel();  // a dry run has no values
  const auto all = targets.to_vector<int64_t>();
  return int64_t(all.size()) - std::ranges::count(all, kIgnoreIndex);
}
int64_t detail::training_part(double fraction, int64_t size, const std::string& name) {
  TG_CHECK(fraction > 0 && fraction <= 1, value,
           "[data] the training part is {} of {}. It must be above 0 and at most 1. Pass 0.9, for example.", fraction,
           name);
  return std::min(size, int64_t((fraction + 0x1p-52) * double(size)));  // 0.2 of 10 rows are 2, also as 1 - 0.8
}
std::pair<Rng, uint64_t> detail::next_in_epochs(Rng& rng, uint64_t n) {
  const uint64_t at = std::atomic_ref(rng.offset).fetch_add(1, std::memory_order_relaxed);
  return {rng.split(at / n), at % n};
}

}  // namespace tg
