#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/output.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

namespace tg::apps {
namespace {
using FileId = std::pair<uint64_t, uint64_t>;  // device and inode
std::mutex inputs_mutex;
std::map<FileId, std::string> inputs;

void note_input(const std::string& path, FileId id) {
  const std::lock_guard lock(inputs_mutex);
  inputs.emplace(id, path);
}
std::string input_at(const std::string& path) {
  struct stat s;
  const std::lock_guard lock(inputs_mutex);
  const auto at = ::stat(path.c_str(), &s) ? inputs.end() : inputs.find({s.st_dev, s.st_ino});
  return at == inputs.end() ? "" : at->second;
}
void check_apart(std::string_view command, std::string_view flag, const std::string& path, const std::string& input) {
  TG_CHECK(input.empty(), value,
           "[{}] {} {} is the file that is read as {}. It would be replaced or removed. Choose another {}.", command,
           flag, path, input, flag);
}
[[maybe_unused]] const bool installed = (detail::file_read_hook = note_input, true);
}  // namespace

void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one) {
  const std::string input = input_at(path);
  if (detail::path_exists(path)) {
    const MappedFile file(path);
    bool ours = file.text().empty();
    try {
      ours = ours || holds_one(file.text());
    } catch (const Error&) {  // another format
    }
    TG_CHECK(ours, value, "[{}] {} {} exists and is not a {}. It would be replaced. Name a new file.", command, flag,
             path, kind);
  }
  check_apart(command, flag, path, input);
  detail::check_writable(path);
}

void check_separate(std::string_view command, const std::string& model, const std::string& out) {
  std::error_code none;
  TG_CHECK(!std::filesystem::equivalent(model, out, none), value,
           "[{}] --out {} is the folder of --model, whose files would no longer match. Choose another.", command, out);
}
void check_free(std::string_view command, const std::string& out, std::string_view what,
                const std::vector<std::string>& names, bool overwrite) {
  for (const std::string& name : names) {
    check_apart(command, "--out", out + "/" + name, input_at(out + "/" + name));
    TG_CHECK(overwrite || !detail::path_exists(out + "/" + name), value,
             "[{}] {}/{} exists, and a new {} would overwrite the files in its folder. Choose another --out, or pass "
             "--overwrite.",
             command, out, name, what);
  }
}

std::string new_output(std::string_view command, std::string out, std::string_view kind) {
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  TG_CHECK(!detail::path_exists(out), value,
           "[{}] {} exists. --out names a new {}. Remove it, or choose another --out.", command, out, kind);
  return out;
}

void write_new_folder(const std::string& out, const std::vector<std::string>& former,
                      const std::function<void(const std::string& folder)>& write) {
  namespace fs = std::filesystem;
  const std::string part = detail::temporary_folder(out);
  std::error_code none;
  detail::remove_leftovers(out);
  detail::make_folder(part);
  try {
    write(part);
    if (detail::path_exists(out)) fs::permissions(part, fs::status(out).permissions());
    for (fs::directory_iterator it(out, none), end; !none && it != end; it.increment(none)) {
      const std::string name = it->path().filename().string();
      if (std::ranges::count(former, name)) continue;
      std::error_code error;
      fs::create_hard_link(it->path(), part + "/" + name, error);
      TG_CHECK(!error, io, "[file] {}/{} cannot be kept in the new folder: {}. Move it, or choose another --out.", out,
               name, error.message());
    }
    detail::place_folder(part, out);
  } catch (...) {
    fs::remove_all(part, none);
    throw;
  }
  fs::remove_all(part, none);
}

}  // namespace tg::apps
