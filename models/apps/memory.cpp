#include <tapegrad/core/backend.h>
#include <tapegrad/models/apps/memory.h>

namespace tg::apps {

void check_memory(std::string_view op, double bytes, std::string_view what, Device device) {
  const auto there = double(runtime_of(device).memory(device.index));
  TG_CHECK(
      there == 0 || bytes <= there, value,
      "[{}] this run needs {:.3g} GB of memory or more, and {} has {:.3g}. {} must fit. Make the model, the context "
      "or the batch smaller.",
      op, bytes * 1e-9, device == Device::cpu() ? "the machine" : to_string(device), there * 1e-9, what);
}

}  // namespace tg::apps
