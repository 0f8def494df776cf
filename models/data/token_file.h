/// @file
/// Files of token ids: NumPy arrays, llm.c's shards and raw ids. All little-endian.
#pragma once
#include <tapegrad/models/config/suggest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {
class InputFile;

/// Ids of a file without a header.
enum class TokenType { u16, u32 };
/// Names of values.
template <> inline constexpr EnumNames<2> kEnumNames<TokenType>{"token_type", {"u16", "u32"}};

/// Ids of a file or in memory.
struct TokenView {
  std::shared_ptr<const InputFile> file = {};
  std::shared_ptr<const std::byte> memory = {};  ///< no file: memory
  size_t begin = 0;                              ///< first id, in bytes
  size_t width = 2;                              ///< bytes per id
  bool is_signed = false;
  int64_t count = 0;
  TokenView subspan(size_t at, size_t n) const {
    return {file, memory, begin + width * at, width, is_signed, int64_t(n)};
  }
  /// Reads ids from `at` on. An Error for ids outside of [0, 2^31).
  void read(size_t at, std::span<int32_t> to) const;
};

/// Format of written files: .npy, .bin of llm.c, or .bin without a header.
enum class TokenFormat { npy, llmc, raw };
/// Names of values.
template <> inline constexpr EnumNames<3> kEnumNames<TokenFormat>{"format", {"npy", "llmc", "raw"}};

namespace detail {
/// Opens a file by its content: a 1-D NumPy array of uint8, uint16, uint32, int32 or int64; llm.c (1024 bytes of
/// header: 20240520, 1, the count of uint16 ids, or 20240801, 7, the count of uint32 ids); else `raw` ids. An Error for
/// an empty file, a wrong size or another format.
TokenView open_token_file(const std::string& path, TokenType raw = TokenType::u16);
/// Whether the path ends in .bin or .npy.
bool is_token_file(std::string_view path);
/// Files that a glob(3) pattern matches, sorted; other paths unchanged. An Error if none matches.
std::vector<std::string> matching_files(const std::string& path);
/// Absolute path of a file or pattern.
std::string absolute_pattern(const std::string& path);
/// The header for `count` ids, or an Error if the format lacks them.
std::string token_file_header(TokenFormat, bool wide, int64_t count);
}  // namespace detail

}  // namespace tg
