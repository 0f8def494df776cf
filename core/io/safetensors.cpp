#include <fmt/ranges.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace tg {
namespace {
static_assert(std::endian::native == std::endian::little, "the format is little-endian and is copied as it is");

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr std::array<std::string_view, kDTypes> kFileNames = {"F64", "F32", "F16", "BF16", "I64",
                                                              "I32", "I8",  "U16", "U8",   "BOOL"};  // DType order
constexpr std::array<std::string_view, 12> kUnread = {"U64",         "U32",     "I16",     "C64",
                                                      "F8_E4M3",     "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
                                                      "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4"};
constexpr size_t kLongest = 1000;  // excerpt of a hostile header in a message
constexpr std::string_view kMetadata = "__metadata__";

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw Error(Error::Kind::io,
              fmt::format("[safetensors] {} is no safetensors file: {}. The format is 8 bytes of header length, a JSON "
                          "header and the bytes of the tensors without gaps. Check that the file is complete and of "
                          "this format.",
                          path, what.substr(0, kLongest)));
}

struct Entry {
  std::optional<DType> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

// Checks an entry, with offsets from byte `data` and `available` bytes.
SafetensorsInfo checked_info(const std::string& path, const std::string& name, const Entry& e, size_t data,
                             size_t available) {
  const auto wrong = [&](std::string_view what) { fail(path, fmt::format("tensor '{}' {}", name, what)); };
  const std::span<const uint64_t> shown = std::span(*e.shape).first(std::min<size_t>(e.shape->size(), 2 * kMaxDims));
  const auto sizes = fmt::format("({}{})", fmt::join(shown, ", "), shown.size() < e.shape->size() ? ", ..." : "");
  if (e.shape->size() > kMaxDims)
    wrong(fmt::format("has shape {} of {} dimensions, more than the {} supported", sizes, e.shape->size(), kMaxDims));
  SafetensorsInfo info{.dtype = *e.dtype, .shape = {}, .offset = 0, .bytes = size_of(*e.dtype)};
  // Size 0 counts as 1: strides must not overflow.
  int64_t largest = int64_t(info.bytes);
  for (uint64_t size : *e.shape) {
    if (size > uint64_t(INT64_MAX) || __builtin_mul_overflow(largest, std::max<int64_t>(int64_t(size), 1), &largest))
      wrong(fmt::format("has shape {}, whose size in bytes exceeds 63 bits", sizes));
    info.shape.push_back(int64_t(size));
    info.bytes *= size;
  }
  const auto& o = *e.offsets;
  if (o.size() != 2) wrong(fmt::format("has {} data_offsets, which must be 2: begin and end", o.size()));
  if (o[0] > o[1] || o[1] > available)
    wrong(fmt::format("is at bytes [{}, {}) of the data, which has {} bytes", o[0], o[1], available));
  if (o[1] - o[0] != info.bytes)
    wrong(fmt::format("of shape {} and dtype {} takes {} bytes, but its data_offsets [{}, {}] give {}", sizes,
                      info.dtype, info.bytes, o[0], o[1], o[1] - o[0]));
  info.offset = data + o[0];
  return info;
}

// Reads the header by events: a document would keep the last of equal keys and nest without limit. Other structures are
// rejected at once: depth <= 3.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, size_t data, size_t available)
      : path_(path), data_(data), available_(available) {}

  SafetensorsHeader header;
  std::optional<Error> wrong;  // first bad tensor; invalid JSON throws first

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t x) override { return unexpected(fmt::format("the negative number {}", x)); }
  bool number_float(double, const std::string& text) override {
    return unexpected(fmt::format("{}, which is no integer of 64 bits,", text));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(uint64_t x) override {
    if (at_ != At::list) unexpected(fmt::format("the number {}", x));
    list_->push_back(x);
    return true;
  }
  bool string(std::string& text) override {
    if (at_ == At::metadata) {
      header.metadata[key_] = text;
    } else if (at_ == At::tensor && key_ == "dtype") {
      const auto found = std::find(kFileNames.begin(), kFileNames.end(), text);
      if (std::ranges::find(kUnread, text) != kUnread.end())
        throw Error(
            Error::Kind::dtype,
            fmt::format("[safetensors] {} has the tensor '{}' of {}, which is not read{}. Take the model in F32, "
                        "BF16 or F16.",
                        path_, name_.substr(0, kLongest), text,
                        text == "U32"           ? ": MLX and others pack quantised weights this way"
                        : text.starts_with('F') ? ": its weights are quantised to floats of 8 bits or less"
                                                : ""));
      if (found == kFileNames.end())
        fail(path_,
             fmt::format("tensor '{}' has dtype '{}', which is none of {}", name_, text, fmt::join(kFileNames, " ")));
      entry_.dtype = DType(found - kFileNames.begin());
    } else {
      unexpected(fmt::format("the string '{}'", text));
    }
    return true;
  }
  bool start_object(size_t) override {
    if (at_ == At::start) {
      at_ = At::top;
    } else if (at_ == At::top && name_ == kMetadata) {
      at_ = At::metadata;
    } else if (at_ == At::top) {
      at_ = At::tensor;
      entry_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (at_ == At::tensor) {
      if (!entry_.dtype || !entry_.shape || !entry_.offsets)
        fail(path_, fmt::format("tensor '{}' lacks {}", name_,
                                !entry_.dtype   ? "dtype"
                                : !entry_.shape ? "shape"
                                                : "data_offsets"));
      try {
        if (!wrong) header.tensors[name_] = checked_info(path_, name_, entry_, data_, available_);
      } catch (const Error& e) {
        wrong = e;
      }
    }
    at_ = at_ == At::top ? At::start : At::top;
    return true;
  }
  bool key(std::string& text) override {
    (at_ == At::top ? name_ : key_) = text;
    bool repeated;
    if (at_ == At::top) {
      repeated = text == kMetadata ? std::exchange(saw_metadata_, true) : header.tensors.contains(text);
    } else if (at_ == At::metadata) {
      repeated = header.metadata.contains(text);
    } else {
      if (text != "dtype" && text != "shape" && text != "data_offsets")
        fail(path_, fmt::format("tensor '{}' has the unknown field '{}'", name_, text));
      repeated = text == "dtype" ? bool(entry_.dtype) : bool(text == "shape" ? entry_.shape : entry_.offsets);
    }
    if (repeated) fail(path_, fmt::format("{} appears twice", place()));
    return true;
  }
  bool start_array(size_t) override {
    if (at_ != At::tensor || key_ == "dtype") unexpected("an array");
    list_ = &(key_ == "shape" ? entry_.shape : entry_.offsets).emplace();
    at_ = At::list;
    return true;
  }
  bool end_array() override {
    at_ = At::tensor;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail(path_, fmt::format("its header is no JSON at byte {} of it", position));
  }

 private:
  enum class At { start, top, metadata, tensor, list };

  std::string place() const {
    if (at_ == At::start) return "the header";
    if (at_ == At::top) return fmt::format("'{}'", name_);
    return fmt::format("'{}' of '{}'", key_, name_);
  }
  [[noreturn]] bool unexpected(std::string_view what) const {
    fail(path_, fmt::format("there is {} as {}", what, place()));
  }

  const std::string& path_;
  const size_t data_, available_;
  At at_ = At::start;
  std::string name_, key_;
  bool saw_metadata_ = false;
  // Only the current entry: those of a million tensors would double the memory.
  Entry entry_;
  std::vector<uint64_t>* list_ = nullptr;
};

// An Error unless each byte of data belongs to exactly one tensor.
void check_coverage(const std::string& path, const std::map<std::string, SafetensorsInfo>& tensors, size_t data,
                    size_t end) {
  std::vector<const std::pair<const std::string, SafetensorsInfo>*> order;
  for (const auto& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  size_t at = data;
  const std::string* previous = nullptr;
  for (const auto* t : order) {
    const auto& [name, info] = *t;
    if (info.offset < at)
      fail(path, fmt::format("tensor '{}' begins at byte {} of the data, before '{}' ends at {}", name,
                             info.offset - data, *previous, at - data));
    if (info.offset > at)
      fail(path, fmt::format("bytes [{}, {}) of the data, before tensor '{}', belong to no tensor", at - data,
                             info.offset - data, name));
    at += info.bytes;
    previous = &name;
  }
  if (at != end)
    fail(path, fmt::format("its last {} bytes belong to no tensor: the header describes {} bytes of data", end - at,
                           at - data));
}

const void* elements(const Tensor& t) {
  return visit_dtype(t.dtype(), [&]<class T>() -> const void* { return t.data<T>(); });
}

std::string header_text(const std::string& path, const std::vector<const StateDict::value_type*>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Json> header;  // sorted: equal input gives equal bytes
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  size_t at = 0;
  for (const auto* t : order) {
    const auto& [name, tensor] = *t;
    const size_t end = at + tensor.layout().bytes();
    header[name] = {{"data_offsets", {at, end}},
                    {"dtype", kFileNames[size_t(tensor.dtype())]},
                    {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())}};
    at = end;
  }
  std::string text = detail::text_of(header);
  TG_CHECK(text.size() > kMaxHeader || detail::own_json(text) == Json(header), value,  // invalid UTF-8 became U+FFFD
           "[safetensors] a name or the metadata for {} is not UTF-8. JSON has no other text. Correct the names.",
           path);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// The header of a file of `size` bytes, which read(offset, to) reads.
SafetensorsHeader read_header(size_t size, const std::string& path, const auto& read) {
  const auto fail_start = [&](std::string_view what) {
    std::string first(std::min<size_t>(size, 512), ' ');
    read(0, std::as_writable_bytes(std::span(first)));
    const std::string other = detail::foreign_format(first);
    if (other.empty()) fail(path, what);
    throw Error(Error::Kind::io, fmt::format("[safetensors] {} is no safetensors file but {}.", path, other));
  };
  if (size < 8) fail_start(fmt::format("it has {} bytes, too few for the length of a header", size));
  uint64_t length;
  read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeader)
    fail_start(
        fmt::format("its first 8 bytes give a header of {} bytes, more than the {} allowed", length, kMaxHeader));
  if (length > size - 8)
    fail_start(fmt::format("its header of {} bytes does not fit into the file of {} bytes", length, size));
  std::string header(length, ' ');
  read(8, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{')) fail_start("its header does not begin with '{'");

  const size_t data = 8 + length;
  HeaderReader reader(path, data, size - data);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  if (reader.wrong) throw *reader.wrong;
  check_coverage(path, reader.header.tensors, data, size);
  return std::move(reader.header);
}

}  // namespace

SafetensorsHeader detail::parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  return read_header(file.size(), path, [&](size_t offset, std::span<std::byte> to) {
    std::copy_n(file.begin() + std::ptrdiff_t(offset), to.size(), to.begin());
  });
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path),
      header_(
          read_header(file_.size(), path, [&](size_t offset, std::span<std::byte> to) { file_.read(offset, to); })) {}

bool SafetensorsFile::has(const std::string& name) const { return header_.tensors.contains(name); }
std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> all;
  for (const auto& [name, info] : header_.tensors) all.push_back(name);
  return all;
}
const SafetensorsInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  TG_CHECK(found != header_.tensors.end(), value,
           "[safetensors] {} has no tensor '{}' among its {}. Names are compared letter by letter. Look at names().",
           path(), name, header_.tensors.size());
  return found->second;
}
Tensor SafetensorsFile::tensor(const std::string& name, Device device) const {
  const SafetensorsInfo& i = info(name);
  Tensor here = empty(Layout::contiguous(i.shape, i.dtype));
  void* p = visit_dtype(i.dtype, [&]<class T>() -> void* { return here.mutable_data<T>(); });
  const std::span bytes(static_cast<std::byte*>(p), i.bytes);
  file_.read(i.offset, bytes);
  if (i.dtype == DType::boolean) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
    if (bad != bytes.end())
      fail(path(), fmt::format("element {} of the BOOL tensor '{}' is {}, neither 0 nor 1", bad - bytes.begin(), name,
                               unsigned(*bad)));
  }
  return device == Device::cpu() ? here : detail::from_bytes(bytes, i.shape, i.dtype, device);
}
StateDict SafetensorsFile::tensors(Device device) const {
  StateDict all;
  for (const auto& [name, info] : header_.tensors) all[name] = tensor(name, device);
  return all;
}

void write_safetensors(const std::string& path, const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const StateDict::value_type*> order;
  for (const auto& entry : tensors) {
    TG_CHECK(entry.first != kMetadata, value,
             "[safetensors] a tensor for {} is named '{}'. The format keeps that name for the metadata. Rename it.",
             path, kMetadata);
    TG_CHECK(entry.second, value,
             "[safetensors] '{}' for {} is an empty Tensor. Only tensors with a value can be written. Leave it out.",
             entry.first, path);
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {  // sorted by name
    return size_of(a->second.dtype()) > size_of(b->second.dtype());
  });
  const std::string header = header_text(path, order, metadata);
  TG_CHECK(header.size() <= kMaxHeader, value,
           "[safetensors] the header of {} takes {} bytes, for {} tensors and the metadata. The format allows {}. Put "
           "fewer tensors or less metadata into one file.",
           path, header.size(), order.size(), kMaxHeader);

  detail::write_file_atomically(path, [&](const Sink& write) {
    const uint64_t length = header.size();
    write(std::as_bytes(std::span(&length, 1)));
    write(std::as_bytes(std::span(header)));
    for (const auto* entry : order) {
      const Tensor t = entry->second.detach().to(Device::cpu()).contiguous();
      write({static_cast<const std::byte*>(elements(t)), t.layout().bytes()});
    }
  });
}

}  // namespace tg
