// Folders of Hugging Face that make_huggingface.py wrote. Included by doctest files only.
#pragma once
#include "support/files.h"

namespace tg {

inline std::string data_folder(const std::string& name) { return TG_TEST_DATA "/huggingface/" + name; }
struct HfFolder : Folder {
  explicit HfFolder(const std::string& name) { fs::copy(data_folder(name), path, fs::copy_options::recursive); }
};

}  // namespace tg
