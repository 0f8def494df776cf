// One row per measurement, printed as a table and written as JSON.
#pragma once
#include "common/peak.h"
#include "common/program.h"

#include <string>
#include <string_view>
#include <vector>

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
  double median, p10, p90;  // in `unit`; p10 is the slow end of rates
  double peak = 0;          // of the machine, in `unit`; 0: none
  double seconds = 0;
  int runs = 0;
};
// `work`: 1e9 units per call; a timed run makes `repeats` calls.
Result rate(RowId, std::string unit, double work, const Timing&, double peak, int repeats = 1);

void print_header();
void print(const Result&);

Json json_of(const Origin&, const std::vector<Result>&, const Peaks&);

}  // namespace tg::bench
