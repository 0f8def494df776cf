// One row per thing measured, and what is made of all rows: a table for people and a JSON file for programs. Users: the
// programs of this folder.
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
  std::string text() const;  // "linear 768x512x128 f32": what --filter looks into
};
struct Result {
  RowId id;
  std::string unit;         // GFLOP/s, GB/s or ns
  double median, p10, p90;  // in that unit; of rates, p10 is the slow end
  double peak = 0;          // of the machine, in that unit; 0: there is none
  double seconds = 0;       // of a run, the median
  int runs = 0;
};
// `work` is what a run does, in 1e9 units; the timing is of so many runs.
Result rate(RowId, std::string unit, double work, const Timing&, double peak, int repeats = 1);

void print_header();
void print(const Result&);

Json json_of(const Origin&, const std::vector<Result>&, const Peaks&);

}  // namespace tg::bench
