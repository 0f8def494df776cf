// ns per eager 2x2 add in libtorch: op overhead without kernel work. A stub without TG_TORCH_DIR.
#pragma once

namespace tg::bench {

struct TorchEmit {
  double untracked, tracked;  // ns per op, median of 15 rounds of 10 000
  const char* version;
};
bool torch_emit(TorchEmit&);  // false in a build without libtorch

}  // namespace tg::bench
