// Figures of document 001, parsed once from document.jsonl.
#include <algorithm>

#include "switchback/switchback.h"

namespace tg::bench {
extern const std::string_view kSwitchBackDocument;  // document.jsonl: bench/CMakeLists.txt

namespace {
struct Line {
  SwitchBackShape shape;
  SwitchBackFigure figure;
};
Line parsed(std::string_view text) {
  const Json j = own_json(text);
  const auto number = [&](const std::string& key) { return j[key].get<double>(); };
  const auto size = [&](const char* key) { return j[key].get<int64_t>(); };
  const bool swapped = j["switch"].get<bool>();
  Line l{{size(swapped ? "dim_out" : "dim_in"), number("wm"), size("batch_size"), swapped}, {}};
  for (size_t op = 0; op < kOps; ++op) l.figure.ms[op] = number(kTimed[op].key);
  l.figure.totals = {number("time_standard"), number("time_rowwise"), number("time_global")};
  return l;
}
std::vector<Line> all_lines() {
  std::vector<Line> lines;
  for (size_t at = 0, end; (end = kSwitchBackDocument.find('\n', at)) != std::string_view::npos; at = end + 1)
    lines.push_back(parsed(kSwitchBackDocument.substr(at, end - at)));
  return lines;
}
}  // namespace

const SwitchBackFigure* switchback_figure(const SwitchBackShape& shape) {
  static const std::vector<Line> lines = all_lines();
  const auto at = std::ranges::find(lines, shape, &Line::shape);
  return at == lines.end() ? nullptr : &at->figure;
}

}  // namespace tg::bench
