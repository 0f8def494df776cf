/// @file
/// GGUF files of llama.cpp, versions 2 and 3, little endian: values by key, and tensors. Names have no meaning here.
/// Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once
#include <tapegrad/core/block_format.h>
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/shape.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tg::detail {

/// A tensor in a file.
struct GgufTensor {
  DType dtype = DType::u8;
  std::optional<BlockFormat> format;  ///< format of blocks; u8
  Shape shape;                        ///< outermost first; in files the sizes are innermost first
  size_t offset = 0, bytes = 0;
  std::string_view type() const { return format ? layout_of_block(*format).name : name_of(dtype); }
};

/// Whether a path is that of a GGUF file: by its first bytes, or by a name that ends in .gguf.
bool is_gguf(const std::string& path);

/// An open file. It is read by position: mapped weights would count as memory of the process.
class GgufFile {
 public:
  /// Reads and checks the header. An Error names file, place and remedy: damage, whatever llama.cpp refuses, other
  /// versions and types, big endian files, parts of a split file.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Values by key. Reals in f32 are the shortest decimals that read back as them.
  const std::map<std::string, Json>& values() const { return values_; }
  /// The value of a key, or nothing. An Error if it is of another type, or an integer below 0 or from 2^53 on.
  template <class T> std::optional<T> get(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return {};
    if constexpr (std::same_as<T, int64_t>) check(found->second.is_number_unsigned(), key);
    try {
      const T x = found->second.get<T>();
      if constexpr (std::same_as<T, int64_t>) check(x < int64_t(1) << 53, key);
      return x;
    } catch (const Error&) {
      check(false, key);
      throw;
    }
  }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  /// Fills `to` with a tensor's bytes. An Error for a half of a block that is not finite.
  void read(const std::string& name, std::span<std::byte> to) const;

 private:
  class Reader;
  void check(bool fits, const std::string& key) const;
  void check_whole() const;
  void read_tensors(Reader&, uint64_t count);

  InputFile file_;
  std::map<std::string, Json> values_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace tg::detail
