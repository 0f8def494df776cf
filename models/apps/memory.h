// check_memory: refuses what cannot fit before it is tried. Users: train.cpp, compare.cpp.
#pragma once
#include <tapegrad/core/device.h>

#include <string_view>

namespace tg::apps {

// An Error "[op] ..." when a run that needs `bytes` or more, with `what` in them, is more than the device has.
void check_memory(std::string_view op, double bytes, std::string_view what, Device);

}  // namespace tg::apps
