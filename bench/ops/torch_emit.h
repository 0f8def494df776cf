// The cost of an eager 2x2 add in libtorch, for the table of bench_ops: the overhead of one op and nothing of kernels.
// Built where TG_TORCH_DIR points at libtorch, and elsewhere a function that says there is none. For emit_rows.cpp.
#pragma once

namespace tg::bench {

struct TorchEmit {
  double untracked, tracked;  // ns per op, median of 15 rounds of 10 000
  const char* version;
};
bool torch_emit(TorchEmit&);  // false when this build has no libtorch

}  // namespace tg::bench
