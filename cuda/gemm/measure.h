// Measures cuBLASLt's algorithms.
#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

namespace tg::cuda {

// False during a capture: measuring waits for the device.
bool may_measure(cudaStream_t, std::string_view op);

// Chooses the candidate with the least median time over a few rounds, and returns microseconds per GEMM. A round is
// kMeasuredLaunches GEMMs between two events, on operands that are cold in L2. D is overwritten. Scratch memory is at
// most twice the cache plus one GEMM's operands.
inline constexpr int kMeasuredLaunches = 20;
double measure(const Context&, GemmPlan&, const GemmKey&, const GemmPointers&, cudaStream_t);

}  // namespace tg::cuda
