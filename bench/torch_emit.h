// The cost of an eager 2x2 add in libtorch, for the table of bench_ops. Built where TG_TORCH_DIR points at libtorch.
#pragma once

namespace tg::bench {

struct TorchEmit {
  double untracked, tracked;  // ns per op, median of 15 rounds of 10 000
  const char* version;
};
bool torch_emit(TorchEmit&);  // false when this build has no libtorch

}  // namespace tg::bench
