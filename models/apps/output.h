// Files that a command writes where a flag says.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace tg::apps {

// An Error if the file of `flag` could not be written at the end of the command, or holds something else than an
// earlier one of its kind: holds_one(text) tells. An empty file holds nothing.
void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one);

}  // namespace tg::apps
