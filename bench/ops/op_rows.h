// Rows of bench_ops.
#pragma once
#include "common/harness.h"

#include <functional>

namespace tg::bench {

struct RowId {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  std::string text() const;  // "linear 768x512x128 f32", matched by --filter
};
struct Result {
  RowId id;
  std::string unit;         // GFLOP/s, GB/s or ns
  double median, p10, p90;  // unit: `unit`; p10: slow end of rates
  double peak = 0;          // rate of the machine, in `unit`; 0: none
  double seconds = 0;
  int runs = 0;
};

struct OpRow {
  RowId id;
  // One of both is set. bytes: inputs read and outputs written, once each.
  double flop = 0, bytes = 0;
  enum class Moves { to_another, in_place, reads };  // which peak applies: copies, updates, or reads
  Moves moves = Moves::to_another;
  std::function<std::function<void()>()> make = {};  // makes the inputs; returns one run
};
// At model shapes that fit the device, with the work of a run by definition, whatever a kernel does.
std::vector<OpRow> op_rows(Device);

struct EmitOptions {
  int ops = 10000, rounds = 15;
};
// Engine cost: ns per emitted 2x2 add, a row per mode that `wanted` accepts, with labels and scopes, and for libtorch
// if built in. All are measured in the same rounds.
std::vector<Result> emit_rows(const std::function<bool(const RowId&)>& wanted, EmitOptions = {});

// ns per eager 2x2 add in libtorch: op overhead without kernel work.
struct TorchEmit {
  double untracked, tracked;  // median of 15 rounds of 10 000
  const char* version;
};
bool torch_emit(TorchEmit&);  // false in a build without TG_TORCH_DIR

}  // namespace tg::bench
