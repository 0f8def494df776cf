#include "gpt_timeit/report.h"

namespace tg::bench {
namespace {
constexpr TimeitFigure kDocument[] = {
    {"standalone_small_forward_backward_warmup_0_mixed_False", 260.487, 221.089, 77.0235, 220.483, 414.491},
    {"standalone_small_forward_backward_warmup_1_mixed_False", 220.676, 220.622, 0.3337, 220.170, 221.206},
    {"small_forward_warmup_0_mixed_False", 74.113, 73.137, 2.2265, 72.292, 78.464},
    {"small_forward_warmup_0_mixed_True", 79.124, 75.171, 7.3582, 74.255, 93.519},
    {"small_forward_warmup_1_mixed_False", 71.171, 71.131, 0.1378, 70.959, 71.350},
    {"small_forward_warmup_1_mixed_True", 73.794, 73.823, 0.0565, 73.699, 73.859},
    {"small_backward_warmup_0_mixed_False", 149.865, 150.206, 1.0536, 147.786, 150.662},
    {"small_backward_warmup_0_mixed_True", 151.141, 151.482, 0.7732, 149.605, 151.694},
    {"small_backward_warmup_1_mixed_False", 150.254, 150.193, 0.2013, 149.958, 150.516},
    {"small_backward_warmup_1_mixed_True", 151.467, 151.430, 0.0759, 151.385, 151.564},
    {"small_forward_backward_warmup_0_mixed_False", 220.339, 220.236, 1.3218, 218.327, 222.473},
    {"small_forward_backward_warmup_0_mixed_True", 224.320, 224.365, 0.1466, 224.073, 224.477},
    {"small_forward_backward_warmup_1_mixed_False", 220.491, 220.479, 0.2783, 220.160, 220.830},
    {"small_forward_backward_warmup_1_mixed_True", 224.344, 224.382, 0.1172, 224.199, 224.486},
    {"medium_forward_warmup_0_mixed_False", 245.821, 245.088, 1.4745, 244.956, 248.761},
    {"medium_forward_warmup_0_mixed_True", 223.693, 222.693, 2.1637, 222.347, 228.008},
    {"medium_forward_warmup_1_mixed_False", 244.915, 244.981, 0.1557, 244.672, 245.076},
    {"medium_forward_warmup_1_mixed_True", 222.611, 222.564, 0.1084, 222.476, 222.744},
    {"medium_backward_warmup_0_mixed_False", 483.126, 483.475, 1.4353, 480.336, 484.216},
    {"medium_backward_warmup_0_mixed_True", 461.943, 463.649, 3.2608, 455.431, 463.729},
    {"medium_backward_warmup_1_mixed_False", 483.812, 483.791, 0.2527, 483.513, 484.244},
    {"medium_backward_warmup_1_mixed_True", 464.213, 463.939, 0.8810, 463.462, 465.929},
    {"medium_forward_backward_warmup_0_mixed_False", 728.044, 727.165, 1.6101, 726.529, 730.475},
    {"medium_forward_backward_warmup_0_mixed_True", 683.814, 683.922, 1.0362, 682.084, 685.337},
    {"medium_forward_backward_warmup_1_mixed_False", 726.819, 726.417, 0.6117, 726.191, 727.781},
    {"medium_forward_backward_warmup_1_mixed_True", 683.909, 683.543, 0.6866, 683.391, 685.254},
};
}  // namespace

const TimeitFigure* timeit_figure(std::string_view name) {
  for (const TimeitFigure& f : kDocument)
    if (name == f.name) return &f;
  return nullptr;
}

}  // namespace tg::bench
