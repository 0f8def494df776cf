#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/output.h>

namespace tg::apps {

void check_output(std::string_view command, std::string_view flag, const std::string& path, std::string_view kind,
                  const std::function<bool(std::string_view)>& holds_one) {
  if (path_exists(path)) {
    const MappedFile file(path);
    TG_CHECK(file.text().empty() || holds_one(file.text()), value,
             "[{}] {} {} exists and is not a {}. It would be replaced. Name a new file.", command, flag, path, kind);
  }
  check_writable(path);
}

}  // namespace tg::apps
