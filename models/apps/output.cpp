#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/output.h>

#include <filesystem>

namespace tg::apps {

void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one) {
  if (path_exists(path)) {
    const MappedFile file(path);
    bool ours = file.text().empty();
    try {
      ours = ours || holds_one(file.text());
    } catch (const Error&) {  // of a format that it cannot read
    }
    TG_CHECK(ours, value, "[{}] {} {} exists and is not a {}. It would be replaced. Name a new file.", command, flag,
             path, kind);
  }
  check_writable(path);
}

void check_separate(std::string_view command, const std::string& model, const std::string& out) {
  std::error_code none;
  TG_CHECK(!std::filesystem::equivalent(model, out, none), value,
           "[{}] --out {} is the folder of --model, whose files would no longer match. Choose another.", command, out);
}
void check_free(std::string_view command, const std::string& out, std::string_view what) {
  for (const std::string_view name : {"model.safetensors", "config.json", "adapter_config.json", "log.jsonl"})
    TG_CHECK(!path_exists(fmt::format("{}/{}", out, name)) || (name == "log.jsonl" && what != "run"), value,
             "[{}] {}/{} exists, and a new {} would overwrite the files in its folder. Choose another --out, or pass "
             "--overwrite.",
             command, out, name, what);
}

std::string new_output(std::string_view command, std::string out, std::string_view kind) {
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  remove_leftovers(out);
  TG_CHECK(!path_exists(out), value, "[{}] {} exists. --out names a new {}. Remove it, or choose another --out.",
           command, out, kind);
  return out;
}

void write_new_folder(const std::string& out, const std::function<void(const std::string& folder)>& write) {
  const std::string part = temporary_folder(out);
  make_folder(part);
  try {
    write(part);
    std::filesystem::rename(part, out);
  } catch (...) {
    std::error_code none;
    std::filesystem::remove_all(part, none);
    throw;
  }
}

}  // namespace tg::apps
