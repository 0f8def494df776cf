// bench_gpt_timeit's output: log lines and JSON blocks, the table of runs, the verdict on warm-up steps, a comparison
// with document 004, JSON.
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
// Objects with the document's names, indented by 4.
std::string model_json(const GptConfig&);
std::string profiler_json(const TimeitRun&, int64_t steps);
std::string result_json(const TimeitResult&);

// Like pandas: a line per row in `order`, labelled with its index in `rows`.
std::string data_frame(const std::vector<TimeitRow>& rows, const std::vector<size_t>& order);
std::vector<size_t> by_mean_time(const std::vector<TimeitRow>&);
// forward_backward in f32 of the last size, without and with warm-up steps.
std::vector<size_t> warmup_rows(const std::vector<TimeitRow>&);

// Document 004: with all else equal, warm-up steps lower the standard deviation.
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
// forward + backward compared with forward_backward, for runs with all three; else empty.
std::string sums_text(const std::vector<TimeitRow>&);

// A figure of document 004, in ms; null for other names.
struct TimeitFigure {
  const char* name;
  double mean, median, std_dev, min, max;
};
const TimeitFigure* timeit_figure(std::string_view name);
// Both figures of each run in the document, and its mean over ours; empty without any.
std::string compare_with_document(const TimeitReport&);

void write_timeit_json(const std::string& path, const TimeitReport&);

}  // namespace tg::bench
