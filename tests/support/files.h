// Tests that write files: a temporary folder, and Errors by kind and text.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace tg {
namespace fs = std::filesystem;

struct Folder {  // an own folder for each test, removed at its end
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

// The text of f's Error, which must be of this kind.
template <class F> std::string error_of(Error::Kind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(int(e.kind()) == int(kind));
    return e.what();
  }
  return "no error";
}
#define CHECK_HAS(message, part)                           \
  do {                                                     \
    const std::string m_ = (message);                      \
    CHECK_MESSAGE(m_.find(part) != std::string::npos, m_); \
  } while (0)

inline std::string read_file(const std::string& path) { return std::string(MappedFile(path).text()); }

}  // namespace tg
