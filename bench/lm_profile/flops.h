// Model FLOPs of document 003's steps and their share of the device's peak (MFU, PaLM, arXiv:2204.02311, appendix B):
// the model's GEMMs, whatever an implementation recomputes or skips.
#pragma once
#include "lm_profile/report.h"

namespace tg::bench {

// 2 T (L (4 d^2 + 3 d ff) + V d) + 4 T C d L, with T tokens, contexts of C, L layers, width d, ff and vocabulary V, the
// whole score matrix included. With the backward pass, three times that.
double flops_of_step(const LmSetup&, StepType);

// The formula, and for each run FLOPs, GFLOP/s, and MFU if the peak is known.
std::string utilisation(const LmReport&);

}  // namespace tg::bench
