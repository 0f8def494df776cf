// Chains of pointwise ops: a kernel each (chain_source.h), compiled (rtc.h) at its first use.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/op.h>

namespace tg::cuda {

// True for an op with an expression if there is a compiler; else stderr says why, once. The emulator also needs
// TG_EMULATE_CHAINS=1: there a compilation takes seconds.
bool runs_in_chains(const Op&);
// If the kernel does not compile, stderr says so and the ops run one by one.
void run_chain(const Chain&);
// Makes later calls compile or read kernels again; for tests.
void forget_chains();
uint64_t refused_chains();  // kernels that did not compile; for tests

}  // namespace tg::cuda
