#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

namespace tg::cuda {

// False during a capture, since measuring synchronises.
bool may_measure(cudaStream_t, std::string_view op);

// Chooses the candidate with the least median time of a few rounds; returns microseconds per GEMM. A round is
// kMeasuredLaunches GEMMs between two events, with operands cold in L2. D is overwritten. Scratch memory: at most twice
// the L2 plus one GEMM's operands.
inline constexpr int kMeasuredLaunches = 20;
double measure(const Context&, GemmPlan&, const GemmKey&, const GemmPointers&, cudaStream_t);

}  // namespace tg::cuda
