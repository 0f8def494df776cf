// Chains of pointwise ops on the device: each as one kernel, which is written (chain_source.h) and compiled (rtc.h)
// when it is first run. For backend.cpp.
#pragma once
#include <tapegrad/core/chain.h>
#include <tapegrad/core/op.h>

namespace tg::cuda {

// Whether chains may have the op: it has an expression, and there is a compiler. Why there is none is said once, on
// stderr. On the emulator, where a compilation takes seconds, also TG_EMULATE_CHAINS=1 is wanted.
bool runs_in_chains(const Op&);
// Where its kernel cannot be compiled, which is said on stderr, its ops run one by one.
void run_chain(const Chain&);
// Kernels are compiled, or read from the disk, again, and what was said is said again: for tests.
void forget_chains();
uint64_t refused_chains();  // kernels that did not compile, ever: for tests

}  // namespace tg::cuda
