// Runs a chain of pointwise ops (core/backend/chain.h).
#pragma once

namespace tg {
struct Chain;
namespace cpu {
void run_chain(const Chain&);
}
}  // namespace tg
