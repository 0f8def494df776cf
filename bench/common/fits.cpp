#include "common/fits.h"

namespace tg::bench {
void check_fits(const Variant& run, const std::vector<std::vector<Variant>>& others, Device device) {
  check_fits(run, device, [&](int64_t there) {
    const std::string fit = what_fits(others, there);
    return fit.empty() ? "No --batch is small enough: make the model or the context smaller." : fit;
  });
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
