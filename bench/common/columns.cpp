#include "common/columns.h"

#include <fmt/format.h>

#include <algorithm>

namespace tg::bench {

std::string aligned(const std::vector<Cells>& lines) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const Cells& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string r;
  for (const Cells& line : lines) {
    r += fmt::format("{:<{}}", line[0], widths[0]);
    for (size_t i = 1; i < line.size(); ++i) r += fmt::format("  {:>{}}", line[i], widths[i]);
    r += "\n";
  }
  return r;
}

}  // namespace tg::bench
