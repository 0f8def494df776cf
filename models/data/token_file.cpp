#include <glob.h>
#include <sys/resource.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/token_file.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

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
TokenView read_npy(const InputFile& file) {
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
  std::ranges::replace(dict, '"', '\'');
  std::string json = dict;
  constexpr std::pair<std::string_view, std::string_view> kPythonAsJson[] = {
      {"'", "\""}, {"False", "false"}, {"(", "["}, {",)", "]"}, {",}", "}"}};
  for (const auto& [from, to] : kPythonAsJson)
    for (size_t at = 0; (at = json.find(from, at)) != json.npos; at += to.size()) json.replace(at, from.size(), to);
  const Json head = detail::json_or_null(json);
  const auto has = [&](const char* key) { return head.is_object() && head.size() == 3 && head.contains(key); };
  constexpr std::string_view kTypes[] = {"|u1", "<u2", "<u4", "<i4", "<i8"};
  const auto* type =
      has("descr") ? std::ranges::find(kTypes, head["descr"], [](auto t) { return Json(t); }) : std::end(kTypes);
  check(type != std::end(kTypes) && has("fortran_order") && head["fortran_order"] == Json(false) && has("shape") &&
            head["shape"].is_array() && head["shape"].size() == 1 && head["shape"][0].is_number_unsigned() &&
            std::in_range<int64_t>(head["shape"][0].get<uint64_t>()),
        fmt::format("holds {}", dict.substr(0, 200)));
  return {.begin = before + size,
          .width = size_t((*type)[2] - '0'),
          .is_signed = (*type)[1] == 'i',
          .count = head["shape"][0].get<int64_t>()};
}

// llm.c's format: 256 numbers of 4 bytes: magic, version, count of ids.
constexpr size_t kLlmcHeader = 1024;
struct LlmcKind {
  int32_t magic, version;
  size_t width;
};
constexpr LlmcKind kLlmc[] = {{20240520, 1, 2}, {20240801, 7, 4}};
std::optional<TokenView> read_llmc(const InputFile& file) {
  std::array<int32_t, 3> head{};
  if (file.size() < sizeof head) return std::nullopt;
  file.read(0, std::as_writable_bytes(std::span(head)));
  const auto* kind = std::ranges::find(kLlmc, head[0], &LlmcKind::magic);
  if (kind == std::end(kLlmc)) return std::nullopt;
  TG_CHECK(head[1] == kind->version && head[2] >= 0 && file.size() >= kLlmcHeader, io,
           "[data] {} begins as a token file of llm.c, has {} bytes, version {} and {} tokens. The header has {} "
           "bytes, and the version must be {}. Write it again.",
           file.path(), file.size(), head[1], head[2], kLlmcHeader, kind->version);
  return TokenView{.begin = kLlmcHeader, .width = kind->width, .count = head[2]};
}

template <class T> void read_as(const TokenView& v, size_t at, std::span<int32_t> to) {
  std::array<T, 2048> some;
  while (!to.empty()) {
    const auto part = std::span(some).first(std::min(some.size(), to.size()));
    const size_t begin = v.begin + at * sizeof(T);
    if (v.file)
      v.file->read(begin, std::as_writable_bytes(part));
    else
      std::memcpy(part.data(), v.memory.get() + begin, part.size_bytes());
    for (size_t i = 0; i < part.size(); ++i) {
      if constexpr (sizeof(T) >= sizeof(int32_t))
        TG_CHECK(some[i] >= 0 && some[i] <= T(std::numeric_limits<int32_t>::max()), value,
                 "[data] token {} at position {} of {} does not fit. Token ids are in [0, 2^31). Check the tokenizer "
                 "and, for ids without a header, --token-type.",
                 some[i], at + i, v.file ? v.file->path() : "the data");
      to[i] = int32_t(some[i]);
    }
    to = to.subspan(part.size());
    at += part.size();
  }
}
bool is_pattern(const std::string& path) {
  return path.find_first_of("*?[") != path.npos && !detail::path_exists(path);
}
}  // namespace

bool detail::is_token_file(std::string_view path) { return path.ends_with(".bin") || path.ends_with(".npy"); }

std::vector<std::string> detail::matching_files(const std::string& path) {
  if (!is_pattern(path)) return {path};
  glob_t found{};
  const int status = glob(path.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  TG_CHECK(status == 0, io, "[data] no file matches {}. A pattern must match one or more. Check the path.", path);
  return files;
}

std::string detail::absolute_pattern(const std::string& path) {
  if (!is_pattern(path) || path.starts_with('/')) return absolute_path(path);
  std::string folder;  // escaped: no pattern
  for (const char c : absolute_path("."))
    folder.append(std::string_view("*?[\\").find(c) == folder.npos ? "" : "\\") += c;
  return std::filesystem::path(folder + "/" + path).lexically_normal().string();
}

void TokenView::read(size_t at, std::span<int32_t> to) const {
  switch (width) {
    case 1: return read_as<uint8_t>(*this, at, to);
    case 2: return read_as<uint16_t>(*this, at, to);
    case 4: return is_signed ? read_as<int32_t>(*this, at, to) : read_as<uint32_t>(*this, at, to);
    default: return read_as<int64_t>(*this, at, to);
  }
}

TokenView detail::open_token_file(const std::string& path, TokenType raw) {
  // There may be thousands of open files.
  if (rlimit limit; ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  auto file = std::make_shared<const InputFile>(path);
  const size_t bytes = file->size();
  TG_CHECK(bytes > 0, io, "[data] {} is empty. A token file has 2 bytes for each token. Write it again.", path);
  const std::string start = text_at(*file, 0, 512);
  TokenView ids;
  if (start.starts_with(kNpyMagic)) {
    ids = read_npy(*file);
  } else if (const auto llmc = read_llmc(*file)) {
    ids = *llmc;
  } else {
    const std::string other = foreign_format(start);
    TG_CHECK(other.empty(), io, "[data] {} is {}.", path, other);
    if (path.ends_with(".npy")) (void)read_npy(*file);
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

std::string detail::token_file_header(TokenFormat format, bool wide, int64_t count) {
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
