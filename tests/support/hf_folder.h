// Folders of Hugging Face that make_huggingface.py wrote. Included by doctest files only.
#pragma once
#include <tapegrad/core/io/json.h>

#include "support/files.h"

namespace tg {

inline std::string data_folder(const std::string& name) { return TG_TEST_DATA "/huggingface/" + name; }
// Message of error() with this value in the file.
template <class F>
std::string with_key(const std::string& path, const std::string& key, const Json& x, const F& error) {
  const std::string before = read_file(path);
  Json j = detail::own_json(before);
  j[key] = x;
  detail::write_file_atomically(path, detail::text_of(j));
  const std::string message = error();
  detail::write_file_atomically(path, before);
  return message;
}
struct HfFolder : Folder {
  explicit HfFolder(const std::string& name) { fs::copy(data_folder(name), path, fs::copy_options::recursive); }
};

}  // namespace tg
