// What the runtime of the CPU backend calls for a chain of pointwise ops (core/chain.h). Not for kernels.
#pragma once

namespace tg {
struct Chain;
namespace cpu {
void run_chain(const Chain&);
}
}  // namespace tg
