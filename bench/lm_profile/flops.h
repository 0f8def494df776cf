// Model FLOPs of document 003's steps and their share of what the device could do (MFU, of PaLM's paper,
// arXiv:2204.02311, appendix B): operations of the model's products, not those that an implementation repeats or leaves
// away. Users: bench_lm_profile.
#pragma once
#include "lm_profile/report.h"

namespace tg::bench {

// 2 T (L (4 d^2 + 3 d ff) + V d) + 4 T C d L, with T tokens, contexts of C, L layers, width d, ff and vocabulary V; all
// of the matrix of scores counts, masked or not. Three times that with the backward pass.
double flops_of_step(const LmSetup&, StepType);

// The formula, and a line for each run: FLOPs, GFLOP/s, and MFU where the peak is known.
std::string utilisation(const LmReport&);

}  // namespace tg::bench
