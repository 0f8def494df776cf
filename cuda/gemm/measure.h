// Measuring of cuBLASLt's algorithms. For gemm.cpp.
#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

namespace tg::cuda {

// Measuring waits for the device, which the capture of a stream forbids.
bool may_measure(cudaStream_t, std::string_view op);

// Chooses the candidate that takes the least time, the median of some rounds, and returns that: microseconds a product.
// A round is kMeasuredLaunches products between two events, on operands that no product before it has brought to the L2
// cache. D is overwritten; other memory is scratch, at most twice the cache and one product's operands.
inline constexpr int kMeasuredLaunches = 20;
double measure(const Context&, GemmPlan&, const GemmKey&, const GemmPointers&, cudaStream_t);

}  // namespace tg::cuda
