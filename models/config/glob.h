/// @file
/// glob_matches(): patterns of module and parameter names.
#pragma once
#include <string>
#include <string_view>

namespace tg {

/// Whether the whole name matches the pattern. An asterisk matches any characters, including none and dots.
bool glob_matches(std::string_view pattern, std::string_view name);
/// The name with an asterisk in place of each number, equal for all blocks: "h.*.mlp.fc".
std::string block_pattern(std::string_view name);

}  // namespace tg
