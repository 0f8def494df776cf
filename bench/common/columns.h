#pragma once
#include <string>
#include <vector>

namespace tg::bench {

using Cells = std::vector<std::string>;
// At least one line, all of one length; the first column left-aligned, the others right-aligned, as wide as needed.
std::string aligned(const std::vector<Cells>& lines);

}  // namespace tg::bench
