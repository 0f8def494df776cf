// Runs a chain of pointwise ops (core/backend/chain.h). Kernels do not call it.
#pragma once

namespace tg {
struct Chain;
namespace cpu {
void run_chain(const Chain&);
}
}  // namespace tg
