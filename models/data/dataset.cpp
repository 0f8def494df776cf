#include <tapegrad/core/file.h>
#include <tapegrad/models/data/dataset.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace tg {
namespace {
static_assert(std::endian::native == std::endian::little, "token files are little-endian and are mapped as they are");

void check_sizes(int64_t batch, int64_t context) {
  TG_CHECK(batch >= 1 && context >= 1, value,
           "[data] batch {} and context {}. Both must be at least 1. Correct the settings.", batch, context);
}

// `windows` windows of `length` tokens; begin(w) is where one begins.
template <class Begin> Batch gather(const TokenData& data, int64_t windows, int64_t length, Begin begin) {
  const auto layout = Layout::contiguous({windows, length}, DType::i32);
  Batch batch{empty(layout), empty(layout)};
  const auto n = size_t(length);
  auto *tokens = batch.tokens.mutable_data<int32_t>(), *targets = batch.targets.mutable_data<int32_t>();
  for (int64_t w = 0; w < windows; ++w, tokens += n, targets += n) {
    const int64_t at = begin(w);
    data.copy(at, {tokens, n});
    data.copy(at + 1, {targets, n});
  }
  return batch;
}
}  // namespace

std::string read_texts(std::span<const std::string> paths) {
  TG_CHECK(!paths.empty(), value, "[data] no text is named. Training needs at least one file. Pass its path.");
  std::string all;
  for (const std::string& path : paths) {
    const MappedFile file(path);
    TG_CHECK(!file.text().empty(), io, "[data] {} is empty. Each text must have content. Leave it out or fill it.",
             path);
    all += file.text();
  }
  return all;
}

TokenData TokenData::from_tokens(std::span<const int64_t> tokens, std::string name) {
  int64_t largest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    TG_CHECK(tokens[i] >= 0 && tokens[i] <= std::numeric_limits<int32_t>::max(), value,
             "[data] token {} at position {} of {} does not fit. Token ids are in [0, 2^31). Check the tokenizer.",
             tokens[i], i, name);
    largest = std::max(largest, tokens[i]);
  }
  const auto keep = [&]<class T>() {
    auto owner = std::make_shared<std::vector<T>>(tokens.size());
    std::transform(tokens.begin(), tokens.end(), owner->begin(), [](int64_t t) { return T(t); });
    const std::span<const T> view = *owner;
    return TokenData(std::move(owner), view, std::move(name));
  };
  return largest <= std::numeric_limits<uint16_t>::max() ? keep.operator()<uint16_t>() : keep.operator()<int32_t>();
}
TokenData TokenData::from_file(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const auto bytes = file->bytes();
  TG_CHECK(!bytes.empty(), io, "[data] {} is empty. A token file has 2 bytes for each token. Write it again.", path);
  TG_CHECK(
      bytes.size() % 2 == 0, io,
      "[data] {} has {} bytes. A token file has 2 bytes for each token and no header. Check that it is complete and "
      "that it is no text.",
      path, bytes.size());
  const std::span view(reinterpret_cast<const uint16_t*>(bytes.data()), bytes.size() / 2);
  return TokenData(std::move(file), view, path);
}

int64_t TokenData::size() const {
  return std::visit([](auto v) { return int64_t(v.size()); }, view_);
}
void TokenData::copy(int64_t begin, std::span<int32_t> to) const {
  TG_CHECK(begin >= 0 && begin <= size() && int64_t(to.size()) <= size() - begin, value,
           "[data] {} tokens from position {} of {} are asked for. It has {}. Ask for positions inside.", to.size(),
           begin, name_, size());
  std::visit([&](auto v) { std::copy_n(v.begin() + begin, to.size(), to.begin()); }, view_);
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
  std::visit(
      [&](auto v) {
        const auto bad = std::find_if(v.begin(), v.end(), [&](auto t) { return int64_t(t) >= vocab_size; });
        TG_CHECK(
            bad == v.end(), value,
            "[data] token {} at position {} of {} is not in the vocabulary. The model takes ids in [0, {}). Use the "
            "tokenizer and the vocabulary size of the data.",
            *bad, bad - v.begin(), name_, vocab_size);
      },
      view_);
}

Batches::Batches(TokenData data, int64_t batch, int64_t context, Rng rng)
    : data_(std::move(data)), batch_(batch), context_(context), rng_(rng) {
  check_sizes(batch, context);
  TG_CHECK(
      data_.size() > context, value,
      "[data] {} has {} tokens, but a context of {} needs at least {}. Each window takes context + 1 tokens. Use more "
      "text, a smaller context or another split.",
      data_.name(), data_.size(), context, uint64_t(context) + 1);
}
Batch Batches::next() {
  const auto starts = uint64_t(data_.size() - context_);
  return gather(data_, batch_, context_, [&](int64_t) { return int64_t(rng_.below(starts)); });
}

Windows::Windows(TokenData data, int64_t batch, int64_t context)
    : data_(std::move(data)), batch_(batch), context_(context) {
  check_sizes(batch, context);
  TG_CHECK(data_.size() >= 2, value,
           "[data] {} has {} tokens. At least 2 are needed: one to predict from and one to predict. Use more text or "
           "another split.",
           data_.name(), data_.size());
}
bool Windows::next(Batch& batch) {
  const int64_t left = targets() - at_;
  if (left == 0) return false;
  const int64_t length = std::min(left, context_), windows = std::min(batch_, left / length);
  batch = gather(data_, windows, length, [&](int64_t w) { return at_ + w * length; });
  at_ += windows * length;
  return true;
}

}  // namespace tg
