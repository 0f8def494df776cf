// Chains of pointwise ops, each written as one kernel (chain_source.h) and compiled (rtc.h) at its first use.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/op.h>

namespace tg::cuda {

// The op has an expression, and a compiler is available. If none is, stderr says why, once. The emulator also needs
// TG_EMULATE_CHAINS=1, since a compilation takes seconds there.
bool runs_in_chains(const Op&);
// If the kernel cannot be compiled, stderr says so and the ops run one by one.
void run_chain(const Chain&);
// Kernels are compiled or read from disk again; for tests.
void forget_chains();
uint64_t refused_chains();  // for tests: kernels that did not compile

}  // namespace tg::cuda
