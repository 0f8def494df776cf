// Tables for people: columns as wide as their longest cell.
#pragma once
#include <string>
#include <vector>

namespace tg::bench {

using Cells = std::vector<std::string>;
// One line or more, each with as many cells. The first column to the left, all others to the right.
std::string aligned(const std::vector<Cells>& lines);

}  // namespace tg::bench
