// Each target is a function LLVMFuzzerTestOneInput: an input gives a valid object, which is used, or an Error; anything
// else ends the process. clang links libFuzzer (preset fuzz), other builds replay.cpp, which reads corpus/.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/tensor.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#define TG_FUZZ_CHECK(condition)                                                         \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)

namespace tg::fuzz {

// f's result, or nothing after an Error with a message of the usual form.
template <class F> auto accepted(F f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const Error& e) {
    const std::string_view what = e.what();
    TG_FUZZ_CHECK(what.starts_with('[') && what.find("] ") != what.npos);
    TG_FUZZ_CHECK(e.kind() != Error::Kind::internal);
    return std::nullopt;
  }
}

// A temporary folder, in memory where possible.
class Scratch {
 public:
  Scratch() {
    const bool shm = ::access("/dev/shm", W_OK | X_OK) == 0;
    path_ = (shm ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/tapegrad-fuzz-XXXXXX";
    TG_FUZZ_CHECK(::mkdtemp(path_.data()));
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string file(std::string_view name, std::string_view content) const {
    const std::string path = *this / name;
    std::ofstream f(path, std::ios::binary | std::ios::trunc);
    f.write(content.data(), std::streamsize(content.size()));
    f.close();
    TG_FUZZ_CHECK(f);
    return path;
  }

 private:
  std::string path_;
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && visit_dtype(a.dtype(), [&]<class T>() {
           return a.numel() == 0 || !std::memcmp(a.data<T>(), b.data<T>(), a.layout().bytes());
         });
}

}  // namespace tg::fuzz
