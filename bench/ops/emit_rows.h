// Costs of the engine: ns per emitted 2x2 add in each mode, with labels and scopes, beside libtorch where it is at
// hand.
#pragma once
#include "common/results.h"

#include <functional>

namespace tg::bench {

struct EmitOptions {
  int ops = 10000, rounds = 15;
};
// Each mode is a row; those that `wanted` leaves out are not returned. All are measured in the same rounds.
std::vector<Result> emit_rows(const std::function<bool(const RowId&)>& wanted, EmitOptions = {});

}  // namespace tg::bench
