#include <tapegrad/core/profile/profiler_record.h>

#ifndef TG_CUDA_EMULATED
#include <nvtx3/nvToolsExt.h>

namespace tg::cuda {
namespace {
constexpr detail::RangeListener kNvtx{[](const char* name) { (void)nvtxRangePushA(name); },
                                      [] { (void)nvtxRangePop(); }};
[[maybe_unused]] const auto* const none_before = detail::set_range_listener(&kNvtx);
}  // namespace
}  // namespace tg::cuda
#endif
