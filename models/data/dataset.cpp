#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/tokenizer.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>

namespace tg {
namespace {
static_assert(std::endian::native == std::endian::little, "token files are little-endian and are read as they are");

void check_sizes(int64_t batch, int64_t context) {
  TG_CHECK(batch >= 1 && context >= 1, value,
           "[data] batch {} and context {}. Both must be at least 1. Correct the settings.", batch, context);
}

// Windows of `length` tokens; window w is at begin(w).
template <class Begin> Batch gather(const TokenData& data, int64_t windows, int64_t length, Begin begin) {
  const auto layout = Layout::contiguous({windows, length}, DType::i32);
  Batch batch{empty(layout), empty(layout)};
  const auto n = size_t(length);
  auto *tokens = batch.inputs.mutable_data<int32_t>(), *targets = batch.targets.mutable_data<int32_t>();
  for (int64_t w = 0; w < windows; ++w, tokens += n, targets += n) {
    const int64_t at = begin(w);
    data.copy(at, {tokens, n});
    data.copy(at + 1, {targets, n});
  }
  return batch;
}

// NumPy's format: magic, version, header with size, array.
constexpr std::string_view kNpyMagic = "\x93NUMPY";
bool is_npy(std::string_view path) { return path.ends_with(".npy"); }

std::string npy_header(bool wide, int64_t count) {
  std::string dict = fmt::format("{{'descr': '<u{}', 'fortran_order': False, 'shape': ({},), }}", wide ? 4 : 2, count);
  constexpr size_t kBefore = 10, kAlign = 64;
  dict.append(kAlign - (kBefore + dict.size() + 1) % kAlign, ' ').push_back('\n');
  return std::string(kNpyMagic) + std::string{1, 0, char(uint8_t(dict.size())), char(uint8_t(dict.size() >> 8))} + dict;
}
std::string read_text(const InputFile& file, size_t offset, size_t size) {
  std::string text(std::min(size, file.size() - std::min(offset, file.size())), '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}
struct NpyArray {
  size_t begin, width;
  int64_t count;
};
NpyArray read_npy(const InputFile& file) {
  const auto check = [&](bool holds, std::string_view what) {
    TG_CHECK(holds, io,
             "[data] {} {}. A token file of NumPy is an array of one dimension of uint16 or uint32, little-endian. "
             "Save it by np.save(path, np.asarray(tokens, dtype=np.uint32)).",
             file.path(), what);
  };
  const std::string start = read_text(file, 0, 512), other = foreign_format(start);
  const bool npy = start.starts_with(kNpyMagic);
  check(npy || other.empty(), "is " + other);
  check(npy && start.size() >= 12, "does not begin as a file of NumPy");
  const auto byte = [&](size_t i) { return size_t(uint8_t(start[i])); };
  check(byte(6) >= 1 && byte(6) <= 3, "has an unknown version of the format");
  const bool brief = byte(6) == 1;
  const size_t before = brief ? 10 : 12;
  const size_t size = byte(8) | byte(9) << 8 | (brief ? 0 : byte(10) << 16 | byte(11) << 24);
  constexpr size_t kMost = 1 << 16;
  check(size <= kMost && size <= file.size() - before, "has a header that is cut off, or too long");
  std::string dict = read_text(file, before, size);
  std::erase_if(dict, [](char c) { return c == ' ' || c == '\n'; });
  std::replace(dict.begin(), dict.end(), '"', '\'');
  NpyArray array{before + size, 0, -1};
  std::string rest = dict;  // unread entries, which have any order
  const auto take = [&](size_t at, size_t length) {
    if (at != rest.npos) rest.erase(at, length);
    return at != rest.npos;
  };
  constexpr std::string_view kOrder = "'fortran_order':False", kShape = "'shape':(";
  for (const size_t width : {2, 4}) {
    const std::string descr = fmt::format("'descr':'<u{}'", width);
    if (take(rest.find(descr), descr.size())) array.width = width;
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
  const size_t bytes = file.size() - array.begin;
  check(bytes % array.width == 0 && int64_t(bytes / array.width) == array.count,
        fmt::format("has {} bytes after its header, which says that it has {} tokens of {} bytes", bytes, array.count,
                    array.width));
  check(array.count > 0, "has no tokens");
  return array;
}
}  // namespace

bool is_token_file(std::string_view path) { return path.ends_with(".bin") || is_npy(path); }

template <class T> TokenData TokenData::keep(std::vector<T> tokens, std::string name) {
  auto owner = std::make_shared<const std::vector<T>>(std::move(tokens));
  const std::span<const T> view = *owner;
  return TokenData(std::move(owner), view, std::move(name));
}
TokenData TokenData::from_tokens(std::span<const int64_t> tokens, std::string name) {
  int64_t largest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    TG_CHECK(tokens[i] >= 0 && tokens[i] <= std::numeric_limits<int32_t>::max(), value,
             "[data] token {} at position {} of {} does not fit. Token ids are in [0, 2^31). Check the tokenizer.",
             tokens[i], i, name);
    largest = std::max(largest, tokens[i]);
  }
  if (largest <= std::numeric_limits<uint16_t>::max())
    return keep(std::vector<uint16_t>(tokens.begin(), tokens.end()), std::move(name));
  return keep(std::vector<int32_t>(tokens.begin(), tokens.end()), std::move(name));
}
TokenData TokenData::from_text(const Tokenizer& tokenizer, std::string_view text, std::string name,
                               EncodeOptions options) {
  return from_tokens(
      tokenizer.vocab_size(), [&](const Tokenizer::Take& take) { tokenizer.encode(text, options, take); },
      std::move(name));
}
TokenData TokenData::from_tokens(int64_t vocab_size, const std::function<void(const Tokenizer::Take&)>& produce,
                                 std::string name) {
  const auto kept = [&]<class T>(std::vector<T> all) {
    produce([&](std::span<const int64_t> ids) { all.insert(all.end(), ids.begin(), ids.end()); });
    return keep(std::move(all), std::move(name));
  };
  constexpr int64_t kMost = int64_t(std::numeric_limits<uint16_t>::max()) + 1;
  return vocab_size <= kMost ? kept(std::vector<uint16_t>()) : kept(std::vector<int32_t>());
}
TokenData TokenData::from_file(const std::string& path) {
  auto file = std::make_shared<const InputFile>(path);
  const size_t bytes = file->size();
  TG_CHECK(bytes > 0, io, "[data] {} is empty. A token file has 2 bytes for each token. Write it again.", path);
  NpyArray array{0, 2, int64_t(bytes / 2)};
  if (is_npy(path)) {
    array = read_npy(*file);
  } else {
    TG_CHECK(read_text(*file, 0, kNpyMagic.size()) != kNpyMagic, io,
             "[data] {} is a file of NumPy, whose name must end in .npy. Rename it.", path);
    const std::string other = foreign_format(read_text(*file, 0, 512));
    TG_CHECK(other.empty(), io, "[data] {} is {}.", path, other);
    TG_CHECK(bytes % 2 == 0, io,
             "[data] {} has {} bytes. A token file has 2 bytes for each token and no header. Check that it is complete "
             "and that it is no text.",
             path, bytes);
  }
  const InFile view{file.get(), array.begin, array.width, array.count};
  return TokenData(std::move(file), view, path);
}
bool TokenData::is_wide() const {
  if (const auto* view = std::get_if<InFile>(&view_)) return view->width == 4;
  return std::holds_alternative<std::span<const int32_t>>(view_);
}
void TokenData::write(const std::string& path) const {
  TG_CHECK(is_token_file(path), value, "[data] {} is no name of a token file. It must end in .npy or .bin. Rename it.",
           path);
  TG_CHECK(is_npy(path) || !is_wide(), value,
           "[data] {} has tokens of 4 bytes, and a .bin file holds 16-bit ids. Write {} as .npy, which holds both.",
           name_, path);
  write_file_atomically(path, [&](const Sink& sink) {
    const std::string header = is_npy(path) ? npy_header(is_wide(), size()) : "";
    if (!header.empty()) sink(std::as_bytes(std::span(header)));
    std::vector<int32_t> some;
    std::vector<uint16_t> narrow;
    for (int64_t at = 0; at < size(); at += std::ssize(some)) {
      some.resize(size_t(std::min<int64_t>(1 << 14, size() - at)));
      copy(at, some);
      narrow.assign(some.begin(), some.end());
      sink(is_wide() ? std::as_bytes(std::span(some)) : std::as_bytes(std::span(narrow)));
    }
  });
}
void TokenData::check_unchanged() const {
  if (const auto* view = std::get_if<InFile>(&view_)) view->file->check_unchanged();
}

int64_t TokenData::size() const {
  return std::visit([](auto v) { return int64_t(v.size()); }, view_);
}
int64_t TokenData::bytes() const {
  const auto bytes_of = []<class V>(const V& v) {
    if constexpr (std::is_same_v<V, InFile>)
      return int64_t(0);
    else
      return int64_t(v.size_bytes());
  };
  return std::visit(bytes_of, view_);
}
void TokenData::copy(int64_t begin, std::span<int32_t> to) const {
  TG_CHECK(begin >= 0 && begin <= size() && int64_t(to.size()) <= size() - begin, value,
           "[data] {} tokens from position {} of {} are asked for. It has {}. Ask for positions inside.", to.size(),
           begin, name_, size());
  const auto copy_from = [&]<class V>(const V& v) {
    if constexpr (!std::is_same_v<V, InFile>) {
      std::copy_n(v.begin() + begin, to.size(), to.begin());
    } else {
      const size_t from = v.begin + v.width * size_t(begin);
      if (v.width == 4) return v.file->read(from, std::as_writable_bytes(to));
      std::array<uint16_t, 2048> some;
      for (size_t at = 0; at < to.size(); at += some.size()) {
        const size_t n = std::min(some.size(), to.size() - at);
        v.file->read(from + 2 * at, std::as_writable_bytes(std::span(some).first(n)));
        std::copy_n(some.begin(), n, to.begin() + std::ptrdiff_t(at));
      }
    }
  };
  std::visit(copy_from, view_);
}
TokenData TokenData::slice(int64_t begin, int64_t end) const {
  TG_CHECK(begin >= 0 && begin <= end && end <= size(), value,
           "[data] slice [{}, {}) of {} is outside. It has {} tokens. Pass 0 <= begin <= end <= size.", begin, end,
           name_, size());
  return std::visit([&](auto v) { return TokenData(owner_, v.subspan(size_t(begin), size_t(end - begin)), name_); },
                    view_);
}
TokenData::Split TokenData::split(double fraction) const {
  TG_CHECK(fraction > 0 && fraction <= 1, value,
           "[data] the training part is {} of {}. It must be above 0 and at most 1. Pass 0.9, for example.", fraction,
           name_);
  const auto n = int64_t(fraction * double(size()));
  Split parts{slice(0, n), slice(n, size())};
  parts.train.name_ = "the training part of " + name_;
  parts.val.name_ = "the validation part of " + name_;
  return parts;
}
void TokenData::check_vocabulary(int64_t vocab_size) const {
  std::vector<int32_t> some(1 << 14);
  for (int64_t at = 0; at < size(); at += std::ssize(some)) {
    some.resize(size_t(std::min(std::ssize(some), size() - at)));
    copy(at, some);
    const auto bad = std::find_if(some.begin(), some.end(), [&](int32_t t) { return t < 0 || t >= vocab_size; });
    TG_CHECK(bad == some.end(), value,
             "[data] token {} at position {} of {} is not in the vocabulary. The model takes ids in [0, {}). Use the "
             "tokenizer and the vocabulary size of the data.",
             uint32_t(*bad), at + (bad - some.begin()), name_, vocab_size);
  }
}

ShuffledBatches::ShuffledBatches(TokenData data, int64_t batch, int64_t context, Rng rng, SampleOrder order)
    : data_(std::move(data)), batch_(batch), context_(context), rng_(rng), order_(order) {
  check_sizes(batch, context);
  TG_CHECK(
      data_.size() > context, value,
      "[data] {} has {} tokens, but a context of {} needs at least {}. Each window takes context + 1 tokens. Use more "
      "text, a smaller context or another split.",
      data_.name(), data_.size(), context, uint64_t(context) + 1);
}
Batch ShuffledBatches::next() {
  const auto starts = uint64_t(data_.size() - context_), windows = uint64_t((data_.size() - 1) / context_);
  if (order_ == SampleOrder::epochs)
    return gather(data_, batch_, context_, [&](int64_t) {
      const uint64_t at = rng_.offset++;
      return int64_t(permuted(rng_.split(at / windows), at % windows, windows)) * context_;
    });
  return gather(data_, batch_, context_, [&](int64_t) { return int64_t(rng_.below(starts)); });
}

SequentialBatches::SequentialBatches(TokenData data, int64_t batch, int64_t context)
    : data_(std::move(data)), batch_(batch), context_(context) {
  check_sizes(batch, context);
  TG_CHECK(data_.size() >= 2, value,
           "[data] {} has {} tokens. At least 2 are needed: one to predict from and one to predict. Use more text or "
           "another split.",
           data_.name(), data_.size());
}
std::optional<Batch> SequentialBatches::at(int64_t i) const {
  const int64_t full = targets() / context_ / batch_;            // batches of `batch` full windows
  const int64_t windows = targets() / context_ - full * batch_;  // in the batch after them
  const int64_t rest = targets() % context_;                     // length of the last window
  const bool last = i == full + (windows > 0);
  if (i > full || i < 0 || last) {
    if (!last || rest == 0) return std::nullopt;
    return gather(data_, 1, rest, [&](int64_t) { return targets() - rest; });
  }
  return gather(data_, i < full ? batch_ : windows, context_, [&](int64_t w) { return (i * batch_ + w) * context_; });
}

BatchSource token_batches(const TokenData::Split& data, int64_t batch, int64_t context, bool validate,
                          SampleOrder order) {
  const ShuffledBatches all(data.train, batch, context, Rng(), order);
  BatchSource source;
  source.next = [all](Rng& rng) {
    ShuffledBatches here = all;
    here.set_rng(rng);
    Batch b = here.next();
    rng = here.rng();
    return b;
  };
  if (validate)
    source.validation = [windows = SequentialBatches(data.val, batch, context)](int64_t i) { return windows.at(i); };
  return source;
}

}  // namespace tg
