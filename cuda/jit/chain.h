// Chains of pointwise ops as one kernel (chain_source.h), compiled (rtc.h) at first use.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/op.h>

namespace tg::cuda {

// The op has an expression and there is a compiler; else stderr says why, once. The emulator also needs
// TG_EMULATE_CHAINS=1: compilation takes seconds there.
bool runs_in_chains(const Op&);
// If the kernel does not compile, stderr says so; the ops run one by one.
void run_chain(const Chain&);
void forget_chains();
uint64_t refused_chains();  // tests read it

}  // namespace tg::cuda
