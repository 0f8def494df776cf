// What is made of the runs of bench_gpt_timeit: the lines and JSON blocks of its log, the table of all runs, the claim
// about warm-up steps with its verdict, a table beside the figures of document 004, and a JSON file.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "gpt_timeit/timeit.h"

namespace tg::bench {

struct TimeitRow {
  TimeitRun run;
  TimeitResult result;
};
struct TimeitReport : Origin {
  TimeitSetup setup;
  std::vector<TimeitRow> standalone, matrix;
};

// "2026-01-31 12:00:00,123 - bench_gpt_timeit - INFO - <text>\n", in local time.
std::string log_line(std::string_view text, std::chrono::system_clock::time_point);
// Objects under the document's names, indented by 4.
std::string model_json(const GptConfig&);
std::string profiler_json(const TimeitRun&, int64_t steps);
std::string result_json(const TimeitResult&);

// As pandas shows it: a line for each row, in this order of rows; the index is the place in `rows`.
std::string data_frame(const std::vector<TimeitRow>& rows, const std::vector<size_t>& order);
std::vector<size_t> by_mean_time(const std::vector<TimeitRow>&);
// Forward and backward in f32 of the last size, without and with warm-up steps.
std::vector<size_t> warmup_rows(const std::vector<TimeitRow>&);

// Document 004: with all else the same, a run with warm-up steps has a smaller standard deviation than one without.
struct WarmupClaim {
  struct Pair {
    std::string name;  // "small_forward_mixed_False"
    double cold, warm;
    bool holds() const { return warm < cold; }
  };
  std::vector<Pair> pairs;
  size_t holding() const;
  bool holds() const { return !pairs.empty() && holding() == pairs.size(); }
};
WarmupClaim warmup_claim(const std::vector<TimeitRow>&);
std::string text(const WarmupClaim&);
// forward and backward, added up, beside forward_backward, where there are all three; empty where there are not.
std::string sums_text(const std::vector<TimeitRow>&);

// Of document 004, in milliseconds. Null for other names.
struct TimeitFigure {
  const char* name;
  double mean, median, std_dev, min, max;
};
const TimeitFigure* timeit_figure(std::string_view name);
// Both figures of each run that the document has, and how many times our mean goes into its; empty where there is none.
std::string beside_document(const TimeitReport&);

// Atomically; an Error when the file cannot be written.
void write_timeit_json(const std::string& path, const TimeitReport&);

}  // namespace tg::bench
