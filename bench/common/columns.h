// Text tables: columns as wide as their longest cell.
#pragma once
#include <string>
#include <vector>

namespace tg::bench {

using Cells = std::vector<std::string>;
// At least one line, all of one length. The first column is left-aligned, the others right-aligned.
std::string aligned(const std::vector<Cells>& lines);

}  // namespace tg::bench
