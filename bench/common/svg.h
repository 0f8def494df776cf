// Bar plots as SVG: a bar for each estimate, its confidence interval, and a mark to compare with. No other plots.
// Users: bench_training.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tg::bench {

struct Bar {
  std::string name;
  double low, point, high;  // seconds, above 0
  std::optional<double> mark = {};
};
struct PlotText {
  std::string title, bars, marks = {};  // what bars and marks are
};
// The axis begins at 0, or is logarithmic where the figures differ by more than 30 times.
std::string bar_plot(const PlotText&, const std::vector<Bar>&);

}  // namespace tg::bench
