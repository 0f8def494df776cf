// A temporary folder. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "support/errors.h"

namespace tg {
namespace fs = std::filesystem;

struct Folder {
  std::string path;
  Folder() : path((fs::temp_directory_path() / fmt::format("tapegrad-files-{}-XXXXXX", getpid())).string()) {
    REQUIRE(mkdtemp(path.data()));
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path, name); }
  size_t entries() const { return size_t(std::distance(fs::directory_iterator(path), fs::directory_iterator())); }
};

inline std::string read_file(const std::string& path) { return std::string(MappedFile(path).text()); }

}  // namespace tg
