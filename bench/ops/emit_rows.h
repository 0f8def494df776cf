// Engine cost: ns per emitted 2x2 add in each mode, with labels and scopes, and for libtorch if built in.
#pragma once
#include "common/results.h"

#include <functional>

namespace tg::bench {

struct EmitOptions {
  int ops = 10000, rounds = 15;
};
// One row per mode that `wanted` accepts. All are measured in the same rounds.
std::vector<Result> emit_rows(const std::function<bool(const RowId&)>& wanted, EmitOptions = {});

}  // namespace tg::bench
