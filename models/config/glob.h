/// @file
/// glob_matches(): whether a name fits a pattern. LoRA chooses modules by it, and optimisers choose parameters.
#pragma once
#include <string_view>

namespace tg {

/// Whether the whole name fits a pattern of characters and asterisks. An asterisk stands for any characters, also for
/// none and for dots.
bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace tg
