#include <tapegrad/core/check.h>
#include <tapegrad/core/io/gguf.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace tg::detail {
namespace {

constexpr size_t kMostHeader = 100'000'000, kChunk = 1 << 16;  // bytes
constexpr uint64_t kMostElements = 1 << 23;  // sum of all lists; each takes more memory than in the file
constexpr uint32_t kList = 9;
constexpr size_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // the least, by the type's number

// Tensor types without blocks, by their numbers in files.
constexpr std::pair<uint32_t, DType> kPlain[] = {{0, DType::f32}, {1, DType::f16}, {30, DType::bf16}};
// By number from 9 on; "": a type above, or none.
constexpr std::string_view kOtherTypes[] = {
    "q8_1",   "q2_K",  "q3_K",  "",       "",      "",    "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s",
    "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "i8",    "i16", "i32",  "i64",     "f64",    "iq1_m",   "",
    "",       "",      "",      "tq1_0",  "tq2_0", "",    "",     "",        "mxfp4",  "nvfp4",   "q1_0"};

}  // namespace

bool is_gguf(const std::string& path) {
  if (is_folder(path) || !path_exists(path)) return false;
  std::string magic(4, '\0');
  const InputFile file(path);
  if (file.size() >= magic.size()) file.read(0, std::as_writable_bytes(std::span(magic)));
  return magic == "GGUF" || path.ends_with(".gguf");
}

// Reads the header as far as needed. Nothing is allocated before its bytes are known to be in the file.
class GgufFile::Reader {
 public:
  explicit Reader(const InputFile& file) : file_(file) {}
  size_t at() const { return at_; }

  template <class T> T take() {
    T x;
    std::memcpy(&x, bytes(sizeof(T)).data(), sizeof(T));
    return x;
  }
  // A count of things of at least `least` bytes each.
  uint64_t count(size_t least) {
    const auto n = take<uint64_t>();
    TG_CHECK(n <= (file_.size() - at_) / least, io,
             "[gguf] {} has the count {} at byte {}, and {} bytes are left. Download it anew.", file_.path(), n,
             at_ - sizeof(n), file_.size() - at_);
    return n;
  }
  std::string text() { return std::string(bytes(count(1))); }
  std::string_view bytes(uint64_t n) {
    TG_CHECK(n <= file_.size() - at_, io, "[gguf] {} ends within its header: it has {} bytes. Download it anew.",
             file_.path(), file_.size());
    const size_t end = at_ + size_t(n), had = head_.size();
    TG_CHECK(end <= kMostHeader, value, "[gguf] {} has a header of {} bytes or more. It may have {}.", file_.path(),
             end, kMostHeader);
    if (end > had) {
      head_.resize(std::min(file_.size(), std::max(end, had + std::max(had, kChunk))));
      file_.read(had, std::as_writable_bytes(std::span(head_)).subspan(had));
    }
    return std::string_view(head_).substr(std::exchange(at_, end), size_t(n));
  }
  Json value(uint32_t type) {
    switch (type) {
      case 0: return uint64_t(take<uint8_t>());
      case 1: return integer(take<int8_t>());
      case 2: return uint64_t(take<uint16_t>());
      case 3: return integer(take<int16_t>());
      case 4: return uint64_t(take<uint32_t>());
      case 5: return integer(take<int32_t>());
      case 6: return std::strtod(fmt::format("{}", take<float>()).c_str(), nullptr);
      case 7: return take<uint8_t>() != 0;
      case 8: return text();
      case kList: return list();
      case 10: return take<uint64_t>();
      case 11: return integer(take<int64_t>());
      case 12: return take<double>();
      default: fail_type(type);
    }
  }

 private:
  static Json integer(int64_t x) { return x < 0 ? Json(x) : Json(uint64_t(x)); }
  [[noreturn]] void fail_type(uint32_t type) const {
    fail(Error::Kind::io, fmt::format("[gguf] {} has a value of the type {} before byte {}. Types are 0 to 12, and a "
                                      "list has no lists. Download it anew.",
                                      file_.path(), type, at_));
  }
  Json list() {
    const auto type = take<uint32_t>();
    if (type >= std::size(kValueBytes) || type == kList) fail_type(type);
    const uint64_t n = count(kValueBytes[type]);
    TG_CHECK((elements_ += n) <= kMostElements, value, "[gguf] {} has lists of {} elements or more. It may have {}.",
             file_.path(), elements_, kMostElements);
    Json all = Json::array();
    for (uint64_t i = 0; i < n; ++i) all.push_back(value(type));
    return all;
  }
  const InputFile& file_;
  std::string head_;  // the bytes read so far
  size_t at_ = 0;
  uint64_t elements_ = 0;
};

GgufFile::GgufFile(const std::string& path) : file_(path) {
  std::string first(std::min<size_t>(file_.size(), 512), '\0');
  file_.read(0, std::as_writable_bytes(std::span(first)));
  const bool magic = first.starts_with("GGUF");
  const std::string other = magic ? "" : foreign_format(first);
  TG_CHECK(magic, value, "[gguf] {} is no GGUF file: it {}.", path,
           !other.empty() ? "is " + other : fmt::format("begins with \"{}\"", first.substr(0, 4)));
  Reader r(file_);
  (void)r.bytes(4);
  const auto version = r.take<uint32_t>();
  TG_CHECK(version & 0xffff, value,
           "[gguf] {0} is big endian, and only little endian is read. Convert it: `gguf-convert-endian {0} little` "
           "(pip install gguf).",
           path);
  TG_CHECK(version == 2 || version == 3, value,
           "[gguf] {} has version {}, and 2 and 3 are read. Convert or download it anew.", path, version);
  const uint64_t tensors = r.count(1), keys = r.count(1);
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = r.text();
    const bool is_new = values_.emplace(key, r.value(r.take<uint32_t>())).second;
    TG_CHECK(is_new && !key.empty(), io, "[gguf] {} has the key '{}' {}. Download it anew.", path, key,
             is_new ? "without a name" : "twice");
  }
  check_whole();
  read_tensors(r, tensors);
}

void GgufFile::check(bool fits, const std::string& key) const {
  if (fits) return;
  const std::string is = text_of(values_.at(key));
  fail(Error::Kind::value,
       fmt::format("[gguf] {}: '{}' is {}, of another type than llama.cpp writes or out of range. Download the file "
                   "anew.",
                   path(), key, is.size() > 200 ? is.substr(0, 200) + "..." : is));
}

void GgufFile::check_whole() const {
  const std::string name = path().substr(path().rfind('/') + 1);
  int64_t part = get<int64_t>("split.no").value_or(0) + 1, parts = get<int64_t>("split.count").value_or(0);
  unsigned i = 0, n = 0;
  if (const size_t end = name.rfind("-of-"); parts <= 1 && end != name.npos && end >= 6)
    if (std::sscanf(name.c_str() + end - 6, "-%5u-of-%5u.gguf", &i, &n) == 2) part = i, parts = n;
  TG_CHECK(parts <= 1, value, "[gguf] {0} is part {1} of {2}. Join the parts: `llama-gguf-split --merge {0} OUT`.",
           path(), part, parts);
}

void GgufFile::read_tensors(Reader& r, uint64_t count) {
  constexpr int64_t kMost = int64_t(1) << 53;              // elements
  std::vector<std::pair<std::string, uint64_t>> in_order;  // names and offsets
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = r.text();
    const auto check_that = [&](bool fits, auto... what) {
      if (!fits)
        fail(Error::Kind::io,
             fmt::format("[gguf] {}: the tensor '{}' has {}{}. Download the file anew.", path(), name, what...));
    };
    check_that(!name.empty() && name.size() < 64, name.size(), " bytes in its name, not 1 to 63");
    const auto dims = r.take<uint32_t>();
    check_that(dims >= 1 && dims <= 4, dims, " dimensions, not 1 to 4");
    GgufTensor t{};
    int64_t elements = 1;
    for (uint32_t k = 0; k < dims; ++k) {
      const auto n = r.take<uint64_t>();
      check_that(n >= 1 && n <= uint64_t(kMost / elements), "the size ", n);
      elements *= int64_t(n), t.shape.insert(0, int64_t(n));
    }
    const auto number = r.take<uint32_t>();
    const auto* const plain = std::ranges::find(kPlain, number, &std::pair<uint32_t, DType>::first);
    const auto* const blocks = std::ranges::find(kBlockLayouts, number, &BlockLayout::number);
    const std::string_view other = number >= 9 && number - 9 < std::size(kOtherTypes) ? kOtherTypes[number - 9] : "";
    TG_CHECK(plain != std::end(kPlain) || blocks != std::end(kBlockLayouts), value,
             "[gguf] {}: '{}' is {}, and f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_K, q5_K and q6_K are read. "
             "Download the Q4_K_M or Q8_0 file of the model.",
             path(), name, other.empty() ? fmt::format("of the type {}", number) : other);
    if (plain != std::end(kPlain)) {
      t.dtype = plain->second, t.bytes = size_t(elements) * size_of(t.dtype);
    } else {
      check_that(t.shape.back() % blocks->elements == 0, "no whole number of blocks in a row of ", t.shape.back());
      t.format = BlockFormat(blocks - kBlockLayouts), t.bytes = size_t(elements / blocks->elements * blocks->bytes);
    }
    in_order.emplace_back(name, r.take<uint64_t>());
    check_that(tensors_.emplace(name, t).second, "the name of another", "");
  }
  const auto alignment = uint64_t(get<int64_t>("general.alignment").value_or(32));
  TG_CHECK(std::has_single_bit(alignment) && alignment <= UINT32_MAX, io,
           "[gguf] {}: general.alignment is {}. It must be a power of two. Download the file anew.", path(), alignment);
  const auto padded = [&](uint64_t n) { return (n + alignment - 1) / alignment * alignment; };
  const uint64_t data = padded(r.at());
  uint64_t next = 0;
  for (const auto& [name, offset] : in_order) {
    GgufTensor& t = tensors_.at(name);
    TG_CHECK(offset == next, io,
             "[gguf] {}: the tensor '{}' is at {}, and those before it end at {}. Download the file anew.", path(),
             name, offset, next);
    TG_CHECK(data + next <= file_.size() && t.bytes <= file_.size() - data - next, io,
             "[gguf] {}: the tensor '{}' has {} bytes from {} on, and the file has {}. Download it anew.", path(), name,
             t.bytes, data + next, file_.size());
    t.offset = data + next;
    next = padded(next + t.bytes);
  }
}

void GgufFile::read(const std::string& name, std::span<std::byte> to) const {
  const GgufTensor& t = tensors_.at(name);
  file_.read(t.offset, to);
  if (!t.format) return;
  const BlockLayout& l = layout_of_block(*t.format);
  const size_t in_row = size_t(t.shape.back() / l.elements), blocks = to.size() / size_t(l.bytes);
  for (size_t block = 0; block < blocks; ++block)
    for (int k = 0; k < l.halves; ++k) {
      uint16_t half;
      std::memcpy(&half, &to[block * size_t(l.bytes) + size_t(l.half + 2 * k)], sizeof(half));
      TG_CHECK((half & 0x7c00) != 0x7c00, non_finite,
               "[gguf] {}: '{}' has a scale that is {} in row {}, block {}. It must be finite. Download the file anew.",
               path(), name, half & 0x3ff ? "nan" : "infinite", block / in_row, block % in_row);
    }
}

}  // namespace tg::detail
