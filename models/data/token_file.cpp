#include <glob.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/data/token_file.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

namespace tg {
namespace {
static_assert(std::endian::native == std::endian::little, "token files are little-endian and are read as they are");

std::string text_at(const InputFile& file, size_t offset, size_t size) {
  std::string text(std::min(size, file.size() - std::min(offset, file.size())), '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// NumPy's format: magic, version, header with size, array.
constexpr std::string_view kNpyMagic = "\x93NUMPY";
TokenFile read_npy(const InputFile& file) {
  const auto check = [&](bool holds, std::string_view what) {
    TG_CHECK(holds, io,
             "[data] {} {}. A token file of NumPy is an array of one dimension of uint8, uint16, uint32, int32 or "
             "int64, little-endian. Save it by np.save(path, np.asarray(tokens, dtype=np.uint32)).",
             file.path(), what);
  };
  const std::string start = text_at(file, 0, 12);
  check(start.size() == 12 && start.starts_with(kNpyMagic), "does not begin as a file of NumPy");
  const auto byte = [&](size_t i) { return size_t(uint8_t(start[i])); };
  check(byte(6) >= 1 && byte(6) <= 3, "has an unknown version of the format");
  const bool brief = byte(6) == 1;
  const size_t before = brief ? 10 : 12;
  const size_t size = byte(8) | byte(9) << 8 | (brief ? 0 : byte(10) << 16 | byte(11) << 24);
  constexpr size_t kMost = 1 << 16;
  check(size <= kMost && size <= file.size() - before, "has a header that is cut off, or too long");
  std::string dict = text_at(file, before, size);
  std::erase_if(dict, [](char c) { return c == ' ' || c == '\n'; });
  std::replace(dict.begin(), dict.end(), '"', '\'');
  TokenFile array{.begin = before + size, .width = 0, .count = -1};
  std::string rest = dict;  // unread entries, which have any order
  const auto take = [&](size_t at, size_t length) {
    if (at != rest.npos) rest.erase(at, length);
    return at != rest.npos;
  };
  constexpr std::string_view kOrder = "'fortran_order':False", kShape = "'shape':(";
  for (const std::string_view type : {"|u1", "<u2", "<u4", "<i4", "<i8"}) {
    const std::string descr = fmt::format("'descr':'{}'", type);
    if (!take(rest.find(descr), descr.size())) continue;
    array.width = size_t(type[2] - '0'), array.is_signed = type[1] == 'i';
    break;  // a second one is an Error
  }
  take(rest.find(kOrder), kOrder.size());
  if (const size_t at = rest.find(kShape); at != rest.npos) {
    const char* const first = rest.data() + at + kShape.size();
    const auto [end, error] = std::from_chars(first, rest.data() + rest.size(), array.count);
    if (error == std::errc() && std::string_view(end, rest.data() + rest.size()).starts_with(",)"))
      take(at, size_t(end - rest.data()) - at + 2);
  }
  if (rest != "{,,}" && rest != "{,,,}") array.width = 0;
  check(array.width != 0 && array.count >= 0, fmt::format("holds {}", dict.substr(0, 200)));
  return array;
}

// llm.c's format: 256 numbers of 4 bytes, the first a magic number, then the version and the number of ids.
constexpr size_t kLlmcHeader = 1024;
struct LlmcKind {
  int32_t magic, version;
  size_t width;
};
constexpr LlmcKind kLlmc[] = {{20240520, 1, 2}, {20240801, 7, 4}};
std::optional<TokenFile> read_llmc(const InputFile& file) {
  std::array<int32_t, 3> head{};
  if (file.size() < sizeof head) return std::nullopt;
  file.read(0, std::as_writable_bytes(std::span(head)));
  const auto* kind = std::ranges::find(kLlmc, head[0], &LlmcKind::magic);
  if (kind == std::end(kLlmc)) return std::nullopt;
  TG_CHECK(head[1] == kind->version && head[2] >= 0 && file.size() >= kLlmcHeader, io,
           "[data] {} begins as a token file of llm.c, has {} bytes, version {} and {} tokens. The header has {} "
           "bytes, and the version must be {}. Write it again.",
           file.path(), file.size(), head[1], head[2], kLlmcHeader, kind->version);
  return TokenFile{.begin = kLlmcHeader, .width = kind->width, .count = head[2]};
}

template <class T> void read_as(const TokenFile& f, size_t at, std::span<int32_t> to) {
  std::array<T, 2048> some;
  while (!to.empty()) {
    const size_t n = std::min(some.size(), to.size());
    f.file->read(f.begin + at * sizeof(T), std::as_writable_bytes(std::span(some).first(n)));
    for (size_t i = 0; i < n; ++i) {
      if constexpr (std::is_signed_v<T>)
        TG_CHECK(some[i] >= 0 && some[i] <= std::numeric_limits<int32_t>::max(), value,
                 "[data] token {} at position {} of {} does not fit. Token ids are in [0, 2^31). Check the tokenizer.",
                 some[i], at + i, f.file->path());
      to[i] = int32_t(some[i]);
    }
    to = to.subspan(n);
    at += n;
  }
}
}  // namespace

bool is_token_file(std::string_view path) { return path.ends_with(".bin") || path.ends_with(".npy"); }

std::vector<std::string> matching_files(const std::string& path) {
  if (path.find_first_of("*?[") == path.npos || path_exists(path)) return {path};
  glob_t found{};
  const int status = glob(path.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  TG_CHECK(status == 0, io, "[data] no file matches {}. A pattern must match one or more. Check the path.", path);
  return files;
}

void TokenFile::read(size_t at, std::span<int32_t> to) const {
  switch (width) {
    case 1: return read_as<uint8_t>(*this, at, to);
    case 2: return read_as<uint16_t>(*this, at, to);
    case 4:
      if (is_signed) return read_as<int32_t>(*this, at, to);
      return file->read(begin + 4 * at, std::as_writable_bytes(to));  // 2^31 and above become negative
    default: return read_as<int64_t>(*this, at, to);
  }
}

TokenFile open_token_file(const std::string& path, TokenType raw) {
  auto file = std::make_shared<const InputFile>(path);
  const size_t bytes = file->size();
  TG_CHECK(bytes > 0, io, "[data] {} is empty. A token file has 2 bytes for each token. Write it again.", path);
  const std::string start = text_at(*file, 0, 512);
  TokenFile ids;
  if (start.starts_with(kNpyMagic)) {
    ids = read_npy(*file);
  } else if (const auto llmc = read_llmc(*file)) {
    ids = *llmc;
  } else {
    const std::string other = foreign_format(start);
    TG_CHECK(other.empty(), io, "[data] {} is {}.", path, other);
    if (path.ends_with(".npy")) (void)read_npy(*file);  // an Error
    ids.width = raw == TokenType::u16 ? 2 : 4;
    TG_CHECK(bytes % ids.width == 0, io,
             "[data] {} has {} bytes. A token file without a header has {} bytes for each token. Check that it is "
             "complete and that it is no text.",
             path, bytes, ids.width);
    ids.count = int64_t(bytes / ids.width);
  }
  const size_t rest = bytes - ids.begin;
  TG_CHECK(rest % ids.width == 0 && int64_t(rest / ids.width) == ids.count, io,
           "[data] {} has {} bytes after its header, which says that it has {} tokens of {} bytes. Write it again.",
           path, rest, ids.count, ids.width);
  TG_CHECK(ids.count > 0, io, "[data] {} has no tokens. Leave it out.", path);
  ids.file = std::move(file);
  return ids;
}

std::string token_file_header(TokenFormat format, bool wide, int64_t count) {
  if (format == TokenFormat::raw) return "";
  if (format == TokenFormat::llmc) {
    TG_CHECK(count <= std::numeric_limits<int32_t>::max(), value,
             "[data] a token file of llm.c has {} tokens. It holds fewer than 2^31. Write smaller shards.", count);
    const LlmcKind& kind = kLlmc[wide ? 1 : 0];
    const int32_t head[] = {kind.magic, kind.version, int32_t(count)};
    std::string header(kLlmcHeader, '\0');
    std::memcpy(header.data(), head, sizeof head);
    return header;
  }
  std::string dict = fmt::format("{{'descr': '<u{}', 'fortran_order': False, 'shape': ({},), }}", wide ? 4 : 2, count);
  constexpr size_t kBefore = 10, kAlign = 64;
  dict.append(kAlign - (kBefore + dict.size() + 1) % kAlign, ' ').push_back('\n');
  return std::string(kNpyMagic) + std::string{1, 0, char(uint8_t(dict.size())), char(uint8_t(dict.size() >> 8))} + dict;
}

}  // namespace tg
