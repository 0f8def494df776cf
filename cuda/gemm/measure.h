// Measures cuBLASLt's algorithms.
#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

namespace tg::cuda {

// False during a capture: measuring synchronises.
bool may_measure(cudaStream_t, std::string_view op);

// Least median time of a few rounds; returns microseconds per GEMM. A round: kMeasuredLaunches GEMMs between two
// events, cold in L2. Overwrites D. Scratch: at most twice the L2 plus one GEMM's operands.
inline constexpr int kMeasuredLaunches = 20;
double measure(const Context&, GemmPlan&, const GemmKey&, const GemmPointers&, cudaStream_t);

}  // namespace tg::cuda
