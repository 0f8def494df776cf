#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/data/dataset.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tg {
namespace {

void check_sizes(int64_t batch, int64_t context) {
  TG_CHECK(batch >= 1 && context >= 1, value,
           "[data] batch {} and context {}. Both must be at least 1. Correct the settings.", batch, context);
}

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
}  // namespace

TokenData::TokenData(std::vector<Part> parts, std::string name) : parts_(std::move(parts)), name_(std::move(name)) {
  int64_t end = 0;
  for (Part& p : parts_) p.end = end += p.view.count;
}
// Calls f(view, begin in the view, end in the view) for each part of [begin, end).
template <class F> void TokenData::for_each_part(int64_t begin, int64_t end, F f) const {
  for (auto p = std::ranges::upper_bound(parts_, begin, {}, &Part::end); begin < end; ++p) {
    const int64_t first = p->end - p->view.count, last = std::min(end, p->end);
    f(*p, size_t(begin - first), size_t(last - first));
    begin = last;
  }
}
TokenData TokenData::from_tokens(std::span<const int64_t> tokens, std::string name) {
  int64_t ids = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    TG_CHECK(tokens[i] >= 0 && tokens[i] <= std::numeric_limits<int32_t>::max(), value,
             "[data] token {} at position {} of {} does not fit. Token ids are in [0, 2^31). Check the tokenizer.",
             tokens[i], i, name);
    ids = std::max(ids, tokens[i] + 1);
  }
  return from_tokens(
      ids, [&](const Tokenizer::Take& take) { take(tokens); }, std::move(name));
}
TokenData TokenData::from_text(const Tokenizer& tokenizer, std::string_view text, std::string name) {
  return from_tokens(
      tokenizer.vocab_size(), [&](const Tokenizer::Take& take) { tokenizer.encode(text, {}, take); }, std::move(name));
}
TokenData TokenData::from_tokens(int64_t vocab_size, const std::function<void(const Tokenizer::Take&)>& produce,
                                 std::string name) {
  const auto kept = [&]<class T>(std::vector<T> ids) {
    produce([&](std::span<const int64_t> some) { ids.insert(ids.end(), some.begin(), some.end()); });
    const auto owner = std::make_shared<const std::vector<T>>(std::move(ids));
    const std::shared_ptr<const std::byte> bytes(owner, std::as_bytes(std::span(*owner)).data());
    return TokenData({{{.memory = bytes, .width = sizeof(T), .count = std::ssize(*owner)}}}, std::move(name));
  };
  constexpr int64_t kMost = int64_t(std::numeric_limits<uint16_t>::max()) + 1;
  return vocab_size <= kMost ? kept(std::vector<uint16_t>()) : kept(std::vector<int32_t>());
}
TokenData TokenData::from_file(const std::string& path, TokenType raw) {
  return TokenData({{detail::open_token_file(path, raw)}}, path);
}
TokenData TokenData::join(std::span<const TokenData> parts, std::string name) {
  std::vector<Part> all;
  for (const TokenData& d : parts) {
    TG_CHECK(d.groups_.empty(), value, "[data] {} is a mixture. Only plain data can be joined. Mix all groups at once.",
             d.name_);
    all.insert(all.end(), d.parts_.begin(), d.parts_.end());
  }
  return TokenData(std::move(all), std::move(name));
}
TokenData TokenData::mix(std::span<const TokenData> groups, std::span<const double> weights, std::string name) {
  TG_CHECK(groups.size() == weights.size(), value,
           "[data] {} for {} of data. Each group needs one. Correct the weights.",
           detail::counted(std::ssize(weights), "weight"), detail::counted(std::ssize(groups), "group"));
  TokenData all = join(groups, std::move(name));
  int64_t end = 0;
  double total = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    TG_CHECK(weights[i] > 0 && std::isfinite(weights[i]), value,
             "[data] the weight of {} is {}. It must be finite and above 0. Leave the group out, or correct it.",
             groups[i].name_, weights[i]);
    all.groups_.push_back({end, end + groups[i].size(), weights[i]});
    end += groups[i].size();
    total += weights[i];
  }
  TG_CHECK(std::isfinite(total), value, "[data] the sum of the weights is {}. It must be finite. Scale them.", total);
  return all;
}
bool TokenData::is_wide() const {
  return std::ranges::any_of(parts_, [](const Part& p) { return p.view.width > 2; });
}
std::vector<TokenData::Group> TokenData::groups() const {
  return groups_.empty() ? std::vector<Group>{{0, size(), 1}} : groups_;
}
void TokenData::write(const std::string& path, std::optional<TokenFormat> format) const {
  TG_CHECK(detail::is_token_file(path), value,
           "[data] {} is no name of a token file. It must end in .npy or .bin. Rename it.", path);
  if (!format) format = path.ends_with(".npy") ? TokenFormat::npy : TokenFormat::raw;
  TG_CHECK(format != TokenFormat::raw || !is_wide(), value,
           "[data] {} has tokens of 4 bytes, and a .bin file holds 16-bit ids. Write {} as .npy, which holds both.",
           name_, path);
  const std::string header = detail::token_file_header(*format, is_wide(), size());
  detail::write_file_atomically(path, [&](const Sink& sink) {
    if (!header.empty()) sink(std::as_bytes(std::span(header)));
    std::vector<uint16_t> narrow;
    for_each([&](int64_t, std::span<const int32_t> some) {
      narrow.assign(some.begin(), some.end());
      sink(is_wide() ? std::as_bytes(some) : std::as_bytes(std::span(narrow)));
    });
  });
}
void TokenData::check_unchanged() const {
  for (const Part& p : parts_)
    if (p.view.file) p.view.file->check_unchanged();
  if (val_) val_->check_unchanged();
}

int64_t TokenData::size() const { return parts_.empty() ? 0 : parts_.back().end; }
int64_t TokenData::bytes() const {
  int64_t all = val_ ? val_->bytes() : 0;
  for (const Part& p : parts_)
    if (p.view.memory) all += p.view.count * int64_t(p.view.width);
  return all;
}
void TokenData::copy(int64_t begin, std::span<int32_t> to) const {
  TG_CHECK(begin >= 0 && begin <= size() && int64_t(to.size()) <= size() - begin, value,
           "[data] {} tokens from position {} of {} are asked for. It has {}. Ask for positions inside.", to.size(),
           begin, name_, size());
  for_each_part(begin, begin + std::ssize(to), [&](const Part& p, size_t first, size_t last) {
    p.view.read(first, to.first(last - first));
    to = to.subspan(last - first);
  });
}
TokenData TokenData::slice(int64_t begin, int64_t end) const {
  TG_CHECK(begin >= 0 && begin <= end && end <= size(), value,
           "[data] slice [{}, {}) of {} is outside. It has {} tokens. Pass 0 <= begin <= end <= size.", begin, end,
           name_, size());
  std::vector<Part> parts;
  for_each_part(begin, end, [&](const Part& p, size_t first, size_t last) {
    parts.push_back({p.view.subspan(first, last - first)});
  });
  return TokenData(std::move(parts), name_);
}
TokenData TokenData::with_validation(TokenData val) const {
  TokenData all = *this;
  all.val_ = std::make_shared<const TokenData>(std::move(val));
  return all;
}
TokenData::Split TokenData::split(double fraction) const {
  if (val_) {
    TokenData train = *this;
    train.val_ = nullptr;
    return {std::move(train), *val_};
  }
  const auto part = [&](bool train) {
    const std::string name = fmt::format("the {} part of {}", train ? "training" : "validation", name_);
    std::vector<TokenData> all;
    std::vector<double> weights;
    for (const Group& g : groups()) {
      const int64_t middle = g.begin + detail::training_part(fraction, g.end - g.begin, name_);
      all.push_back(train ? slice(g.begin, middle) : slice(middle, g.end)), weights.push_back(g.weight);
    }
    return groups_.empty() ? join(all, name) : mix(all, weights, name);
  };
  return {part(true), part(false)};
}
void TokenData::for_each(const std::function<void(int64_t, std::span<const int32_t>)>& f) const {
  std::vector<int32_t> some(1 << 14);
  for (int64_t at = 0; at < size(); at += std::ssize(some)) {
    some.resize(size_t(std::min(std::ssize(some), size() - at)));
    copy(at, some);
    f(at, some);
  }
}
void TokenData::check_vocabulary(int64_t vocab_size) const {
  for_each([&](int64_t at, std::span<const int32_t> some) {
    const auto bad = std::ranges::find_if(some, [&](int32_t t) { return t >= vocab_size; });
    TG_CHECK(bad == some.end(), value,
             "[data] token {} at position {} of {} is not in the vocabulary. The model takes ids in [0, {}). Use the "
             "tokenizer and the vocabulary size of the data.",
             *bad, at + (bad - some.begin()), name_, vocab_size);
  });
  if (val_) val_->check_vocabulary(vocab_size);
}

ShuffledBatches::ShuffledBatches(TokenData data, int64_t batch, int64_t context, Rng rng, SampleOrder order,
                                 int64_t accumulate)
    : data_(std::move(data)), batch_(batch), context_(context), rng_(rng), order_(order) {
  check_sizes(batch, context);
  for (const TokenData::Group& g : data_.groups())
    TG_CHECK(g.end - g.begin > context, value,
             "[data] {}{} has {}, but a context of {} needs at least {}. Each window takes context + 1 tokens. "
             "Use more text, a smaller context or another split.",
             data_.groups_.empty() ? "" : "a group of ", data_.name(), detail::counted(g.end - g.begin, "token"),
             context, uint64_t(context) + 1);
  TG_CHECK(order == SampleOrder::random || data_.groups_.empty(), value,
           "[data] order is {}, and the data is a mixture. Its groups are repeated at different rates: there is no "
           "epoch. Use random, or no weights.",
           order == SampleOrder::epochs ? "epochs" : "sequential");
  if (order != SampleOrder::sequential) return;
  TG_CHECK(accumulate >= 1, value, "[data] {} batches in a step. There must be 1 or more.", accumulate);
  for (const TokenData::Part& p : data_.parts_) {
    // Their product may overflow.
    const int64_t windows = (p.view.count - 1) / context / batch / accumulate * batch * accumulate;
    TG_CHECK(windows > 0, value,
             "[data] a file of {} has {}, and in sequential order each needs those of a step, {} x {} x {} + 1. Use "
             "another order, smaller steps, or join the files.",
             data_.name(), detail::counted(p.view.count, "token"), batch, accumulate, context);
    runs_.emplace_back(p.end - p.view.count, uint64_t(windows) + (runs_.empty() ? 0 : runs_.back().second));
  }
}
Batch ShuffledBatches::next(Rng& rng) const {
  const auto windows = uint64_t((data_.size() - 1) / context_);
  if (order_ == SampleOrder::epochs)
    return gather(data_, batch_, context_, [&](int64_t) {
      const auto [epoch, at] = detail::next_in_epochs(rng, windows);
      return int64_t(detail::permuted(epoch, at, windows)) * context_;
    });
  if (order_ == SampleOrder::sequential)
    return gather(data_, batch_, context_, [&](int64_t) {
      const uint64_t at = detail::next_in_epochs(rng, runs_.back().second).second;
      const auto run = std::ranges::upper_bound(runs_, at, {}, &std::pair<int64_t, uint64_t>::second);
      return run->first + int64_t(at - (run == runs_.begin() ? 0 : (run - 1)->second)) * context_;
    });
  const std::vector<TokenData::Group> groups = data_.groups();
  double total = 0;
  for (const TokenData::Group& g : groups) total += g.weight;
  return gather(data_, batch_, context_, [&](int64_t) {
    auto group = groups.begin();
    double at = data_.groups_.empty() ? 0 : double(rng.below(uint64_t(1) << 53)) * 0x1p-53 * total;
    while (group + 1 != groups.end() && at >= group->weight) at -= (group++)->weight;
    return group->begin + int64_t(rng.below(uint64_t(group->end - group->begin - context_)));
  });
}

SequentialBatches::SequentialBatches(TokenData data, int64_t batch, int64_t context)
    : data_(std::move(data)), batch_(batch), context_(context) {
  check_sizes(batch, context);
  TG_CHECK(data_.size() >= 2, value,
           "[data] {} has {}. At least 2 are needed: one to predict from and one to predict. Use more text or "
           "another split.",
           data_.name(), detail::counted(data_.size(), "token"));
}
std::optional<Batch> SequentialBatches::at(int64_t i) const {
  const int64_t windows = targets() / context_, rest = targets() % context_;  // full windows, last one's length
  const int64_t batches = windows / batch_ + (windows % batch_ > 0);
  if (i < 0 || i > batches || (i == batches && rest == 0)) return std::nullopt;
  if (i == batches) return gather(data_, 1, rest, [&](int64_t) { return targets() - rest; });
  return gather(data_, std::min(batch_, windows - i * batch_), context_,
                [&](int64_t w) { return (i * batch_ + w) * context_; });
}

BatchSource token_batches(const TokenData::Split& data, int64_t batch, int64_t context, bool validate,
                          SampleOrder order, int64_t accumulate) {
  BatchSource source;
  source.next = [all = ShuffledBatches(data.train, batch, context, Rng(), order, accumulate)](Rng& rng) {
    return all.next(rng);
  };
  if (validate)
    source.validation = [windows = SequentialBatches(data.val, batch, context)](int64_t i) { return windows.at(i); };
  return source;
}

}  // namespace tg
