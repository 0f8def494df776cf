#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/models/data/batch.h>

#include <algorithm>

namespace tg {

int64_t Batch::num_targets() const {
  if (detail::running_dry()) return targets.numel();  // a dry run has no values
  const auto all = targets.to_vector<int64_t>();
  return int64_t(all.size()) - std::count(all.begin(), all.end(), kIgnoreIndex);
}

}  // namespace tg
