#include "common/fits.h"

#include <tapegrad/core/backend.h>
#include <tapegrad/models/train/memory_plan.h>

namespace tg::bench {
namespace {
// The first that takes at most `most` bytes: "--batch 4 (3.10 GB), "; nothing if none does.
std::string first_that_fits(const std::vector<Variant>& variants, int64_t most) {
  for (const Variant& v : variants) try {
      if (const int64_t bytes = v.bytes(); bytes <= most)
        return fmt::format("{} ({}), ", v.name, readable_bytes(bytes));
    } catch (const Error&) {  // sizes beyond all memory
    }
  return "";
}
}  // namespace

void check_fits(const Variant& run, const std::vector<std::vector<Variant>>& others, Device device) {
  const auto there = int64_t(runtime_of(device).memory(device.index));
  const int64_t bytes = run.bytes();
  if (there == 0 || bytes <= there) return;
  std::string fit;
  for (const std::vector<Variant>& list : others) fit += first_that_fits(list, there);
  TG_CHECK(false, memory,
           "{} takes {} of memory, and {} has {}, which is {} too little. All tensors of a step must fit. {}", run.name,
           readable_bytes(bytes), device == Device::cpu() ? "the machine" : to_string(device), readable_bytes(there),
           readable_bytes(bytes - there),
           fit.empty() ? "No --batch is small enough: make the model or the context smaller."
                       : fmt::format("These would fit: {}.", fit.substr(0, fit.size() - 2)));
}
std::vector<Variant> smaller_batches(int64_t batch, const std::function<int64_t(int64_t batch)>& bytes) {
  std::vector<Variant> r;
  while (batch > 1) {
    batch /= 2;
    r.push_back({fmt::format("--batch {}", batch), [=] { return bytes(batch); }});
  }
  return r;
}

}  // namespace tg::bench
