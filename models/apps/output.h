// Output files and folders.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tg::apps {

// An Error if the file was read, cannot be written, or is neither empty nor of this kind: holds_one(text).
void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one);

void check_separate(std::string_view command, const std::string& model, const std::string& out);
// An Error if a new `what` would replace or remove a file that was read, or exists without `overwrite`.
void check_free(std::string_view command, const std::string& out, std::string_view what,
                const std::vector<std::string>& names, bool overwrite);

// `out` without trailing slashes. An Error if it exists. `kind`: file or folder.
std::string new_output(std::string_view command, std::string out, std::string_view kind);
// Calls write(temporary folder) and renames that to `out`. Other files stay, except `former`; folders are an Error.
void write_new_folder(const std::string& out, const std::vector<std::string>& former,
                      const std::function<void(const std::string& folder)>& write);

}  // namespace tg::apps
