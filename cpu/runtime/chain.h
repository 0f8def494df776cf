// Runs a chain of pointwise ops (core/chain.h) for the CPU backend. Not for kernels.
#pragma once

namespace tg {
struct Chain;
namespace cpu {
void run_chain(const Chain&);
}
}  // namespace tg
