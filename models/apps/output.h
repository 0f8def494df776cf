// Checks of output files.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace tg::apps {

// Throws an Error if the file cannot be written, or is not an earlier output of this kind: holds_one(text) tells. An
// empty file passes.
void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one);

}  // namespace tg::apps
