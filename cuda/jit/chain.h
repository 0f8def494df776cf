// Chains of pointwise ops, each run as one kernel that is written (chain_source.h) and compiled (rtc.h) at its first
// use.
#pragma once
#include <tapegrad/core/chain.h>
#include <tapegrad/core/op.h>

namespace tg::cuda {

// Whether chains may contain the op: it has an expression, and a compiler is available. If none is, stderr says why,
// once. The emulator also needs TG_EMULATE_CHAINS=1, since a compilation takes seconds there.
bool runs_in_chains(const Op&);
// If the kernel cannot be compiled, stderr says so and the ops run one by one.
void run_chain(const Chain&);
// For tests: kernels are compiled or read from disk again, and messages repeat.
void forget_chains();
uint64_t refused_chains();  // for tests: kernels that did not compile

}  // namespace tg::cuda
