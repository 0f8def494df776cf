#include <tapegrad/core/check.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/examples.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

namespace tg {
namespace {
constexpr int32_t kIgnored = int32_t(Batch::kIgnoreIndex);

std::string text_in(const Json& object, const std::string& key, const std::string& place = "") {
  const Json& x = object.at(key);
  TG_CHECK(x.is_string(), value, "[examples] {}'{}' is {}. It must be a text in quotes.", place, key, x.type_name());
  return x.get<std::string>();
}

// Turns the objects of lines into examples.
class LineReader {
 public:
  LineReader(const Tokenizer& tokenizer, const ExampleOptions& o) : tokenizer_(tokenizer), o_(o) {
    if (o_.format.stop.empty()) o_.format.stop = o_.end;
  }
  int64_t cut = 0;  // examples of the last line that were longer than the context
  Examples::Row read(const Json& line) {
    cut = 0;
    if (!o_.pairs) return {example_of(line)};
    if (!has(line, {"prompt", "chosen", "rejected"})) refuse(line, "prompt, chosen and rejected");
    Examples::Row pair{answered(line, "chosen"), answered(line, "rejected")};
    TG_CHECK(pair[0]->tokens != pair[1]->tokens, value,
             "[examples] 'chosen' and 'rejected' have the same {} tokens{}. A pair must differ: correct it or leave it "
             "out.",
             pair[0]->tokens.size(), cut > 0 ? " within the context" : "");
    return pair;
  }

 private:
  using Example = std::shared_ptr<const TokenExample>;
  static bool has(const Json& line, std::initializer_list<const char*> keys) {
    return line.is_object() && std::ranges::all_of(keys, [&](const char* k) { return line.contains(k); });
  }
  [[noreturn]] void refuse(const Json& line, std::string_view kinds) const {
    std::vector<std::string_view> keys;
    if (line.is_object())
      for (const auto& [key, x] : line.items()) keys.push_back(key);
    throw Error(Error::Kind::value,
                fmt::format("[examples] {}. A line is an object with {}. {}.",
                            line.is_object() ? "the keys are " + (keys.empty() ? "none" : listed(keys))
                                             : fmt::format("the line holds {}", line.type_name()),
                            kinds,
                            !line.is_object() || line.contains("chosen") == o_.pairs ? "Rename its keys"
                            : o_.pairs ? "Leave out --objective dpo, or rename its keys"
                                       : "Pass --objective dpo"));
  }
  // A list of messages, or a text as one of `role`.
  static std::vector<Message> messages_in(const Json& line, const std::string& key, const std::string& role) {
    const Json& x = line.at(key);
    if (!role.empty() && x.is_string()) return {{role, x.get<std::string>()}};
    TG_CHECK(x.is_array(), value, "[examples] '{}' is {}. It must be {}a list of messages.", key, x.type_name(),
             role.empty() ? "" : "a text or ");
    std::vector<Message> all;
    for (const Json& m : x) {
      const std::string place = fmt::format("message {} of '{}': ", all.size(), key);
      TG_CHECK(m.is_object() && m.contains("role") && m.contains("content"), value,
               "[examples] {}no role and content. A message is {{\"role\": ..., \"content\": ...}}.", place);
      all.push_back({text_in(m, "role", place), text_in(m, "content", place)});
    }
    return all;
  }
  Example example_of(const Json& line) {
    if (has(line, {"messages"})) return conversation(messages_in(line, "messages", ""), 0);
    if (has(line, {"prompt", "completion"})) return answered(line, "completion");
    if (has(line, {"instruction", "output"})) {
      std::string user = text_in(line, "instruction");
      if (line.contains("input") && !text_in(line, "input").empty()) user += o_.format.input + text_in(line, "input");
      return conversation({{"user", user}, {"assistant", text_in(line, "output")}}, 0);
    }
    if (!has(line, {"text"}))
      refuse(line,
             "messages; prompt and completion; instruction and output; or text. Prompt, chosen and rejected are "
             "for DPO");
    TokenExample e;
    add(e, tokenizer_.encode(text_in(line, "text"), {.add_special = true}), true);
    const std::vector<int64_t>& end = marker(o_.end);
    const bool ended = e.tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), e.tokens.rbegin());
    if (!ended) add(e, end, true);
    return finished(std::move(e));
  }
  Example answered(const Json& line, const std::string& key) {
    std::vector<Message> all = messages_in(line, "prompt", "user");
    const size_t prompt = all.size();
    for (Message& m : messages_in(line, key, "assistant")) all.push_back(std::move(m));
    return conversation(all, prompt);
  }
  // Only replies from message `first` on count.
  Example conversation(const std::vector<Message>& messages, size_t first) {
    for (const Message& m : messages)
      TG_CHECK(m.role != "assistant" || !m.content.empty(), value,
               "[examples] a reply of the assistant is empty. There is nothing to learn from it: fill it or leave it "
               "out.");
    TokenExample e;
    for (const ChatPart& p : chat_parts(o_.format, messages))
      add(e, p.marker ? marker(p.text) : tokenizer_.encode(p.text),
          o_.loss == ExampleLoss::all || p.reply >= int64_t(first));
    return finished(std::move(e));
  }
  const std::vector<int64_t>& marker(const std::string& text) {
    const auto [at, added] = markers_.try_emplace(text);
    if (added) at->second = tokenizer_.encode(text, {.parse_special = true});
    return at->second;
  }
  static void add(TokenExample& e, std::span<const int64_t> ids, bool counts) {
    for (const int64_t id : ids) e.tokens.push_back(int32_t(id)), e.targets.push_back(counts ? int32_t(id) : kIgnored);
  }
  Example finished(TokenExample e) {
    const auto before = e.tokens.size(), most = size_t(o_.context) + 1;
    if (before > most) e.tokens.resize(most), e.targets.resize(most), ++cut;
    e.tokens.shrink_to_fit(), e.targets.shrink_to_fit();
    // The first token follows none.
    const bool counts =
        std::any_of(e.targets.begin() + (before > 0), e.targets.end(), [](int32_t t) { return t != kIgnored; });
    TG_CHECK(
        counts, value,
        "[examples] none of its {} tokens counts in the loss, or none within the context of {}. At least one must: "
        "use a larger context or --window, or skip such lines (--skip-bad true).",
        before, o_.context);
    return std::make_shared<const TokenExample>(std::move(e));
  }

  const Tokenizer& tokenizer_;
  ExampleOptions o_;
  std::unordered_map<std::string, std::vector<int64_t>> markers_;
};
}  // namespace

bool holds_examples(const std::string& path) {
  if (!path.ends_with(".jsonl")) return false;
  constexpr int64_t kLines = 100;  // some may be wrong
  bool holds = false;
  detail::for_each_line(path, [&](std::string_view text, int64_t number) {
    const Json line = json_or_null(text);
    holds = line.is_object() && (line.contains("messages") || line.contains("prompt") || line.contains("instruction"));
    return !line.is_object() && number < kLines;
  });
  return holds;
}

Examples read_examples(std::span<const std::string> paths, const Tokenizer& tokenizer, const ExampleOptions& o) {
  TG_CHECK(!paths.empty(), value, "[examples] no file is named. Training needs at least one. Pass its path.");
  TG_CHECK(o.context >= 1, value, "[examples] the context is {}. It must be at least 1.", o.context);
  constexpr size_t kMostBytes = 16 << 20, kMostMessage = 600;
  LineReader reader(tokenizer, o);
  Examples all;
  all.context = o.context, all.pairs = o.pairs;
  for (const std::string& path : paths)
    detail::for_each_line(path, [&](std::string_view line, int64_t number) {
      try {
        TG_CHECK(line.size() <= kMostBytes, value, "[examples] the line has {} bytes. It may have {}. Shorten it.",
                 line.size(), kMostBytes);
        all.rows.push_back(reader.read(parse_json(line, "examples", "the line", 64)));
        all.cut += reader.cut;
      } catch (const Error& e) {
        std::string what = e.what();
        if (what.size() > kMostMessage) what.resize(kMostMessage), what += "...";  // JSON's Errors quote the text
        what += fmt::format("\n    in {}:{}", path, number);
        if (!o.skip_bad) throw Error(e.kind(), what, e.scoped());
        if (all.skipped++ == 0) all.why = what;
      }
      return true;
    });
  TG_CHECK(!all.rows.empty(), value, "[examples] no line of {} is an example, {} were skipped. At least one must be.{}",
           paths[0], all.skipped, all.why.empty() ? "" : "\n" + all.why);
  return all;
}

Examples::Split Examples::split(double fraction) const {
  const int64_t middle = detail::training_part(fraction, size(), "the examples");
  Split parts{*this, *this};
  parts.train.rows.resize(size_t(middle));
  parts.val.rows.erase(parts.val.rows.begin(), parts.val.rows.begin() + middle);
  return parts;
}
Examples Examples::packed() const {
  TG_CHECK(!pairs, value, "[examples] pairs cannot be packed: each is compared alone. Use packing none.");
  Examples r = *this;
  std::vector<Row> order = std::exchange(r.rows, {});
  std::ranges::stable_sort(order, std::greater(), [](const Row& row) { return row[0]->tokens.size(); });
  std::multimap<size_t, size_t> rooms;  // tokens that still fit, and the row
  for (const Row& one : order) {
    const size_t tokens = one[0]->tokens.size();
    auto room = rooms.lower_bound(tokens);
    if (room == rooms.end()) {
      room = rooms.emplace(size_t(context) + 1, r.rows.size());
      r.rows.emplace_back();
    }
    const auto [free, row] = *room;
    rooms.erase(room);
    rooms.emplace(free - tokens, row);
    r.rows[row].push_back(one[0]);
  }
  return r;
}

ExampleBatches::ExampleBatches(Examples all, ExampleBatchOptions o)
    : all_(std::make_shared<const Examples>(std::move(all))), o_(o) {
  TG_CHECK(o.batch >= 1 && o.accumulate >= 1, value,
           "[examples] batch {} and accumulate {}. Both must be at least 1. Correct the settings.", o.batch,
           o.accumulate);
  const int64_t rows = all_->size();
  TG_CHECK(rows / o.batch >= o.accumulate, value,
           "[examples] {} rows for steps of {} batches of {}. There must be enough for one step. Use more examples, a "
           "smaller batch, another split, or no packing.",
           rows, o.accumulate, o.batch);
  for (const Examples::Row& row : all_->rows) {
    int64_t longest = 0, sum = -1;
    for (const auto& e : row) longest = std::max(longest, e->inputs()), sum += std::ssize(e->tokens);
    sizes_.push_back(all_->pairs ? longest : sum);
  }
  by_size_.resize(size_t(rows));
  std::iota(by_size_.begin(), by_size_.end(), int64_t(0));
  std::ranges::stable_sort(by_size_, {}, [&](int64_t r) { return sizes_[size_t(r)]; });
  constexpr int64_t kLengths = 8, kMultiple = 8;
  for (int64_t k = 1; k <= kLengths; ++k) {
    const int64_t size = sizes_[size_t(by_size_[size_t((rows * k + kLengths - 1) / kLengths - 1)])];
    const int64_t length = std::max(size, std::min(all_->context, (size + kMultiple - 1) / kMultiple * kMultiple));
    if (lengths_.empty() || lengths_.back() < length) lengths_.push_back(length);
  }
}
int64_t ExampleBatches::per_epoch() const { return all_->size() / rows_of_step() * o_.accumulate; }
int64_t ExampleBatches::padded(std::span<const int64_t> from_short_to_long) const {
  return *std::ranges::lower_bound(lengths_, sizes_[size_t(from_short_to_long.back())]);
}
// The rows of the steps [first, first + sorted_steps()) of an epoch, from short to long.
std::vector<int64_t> ExampleBatches::sorted_rows(Rng epoch, int64_t first) const {
  const int64_t end = std::min(per_epoch() / o_.accumulate, first + sorted_steps());
  std::vector<int64_t> r;
  for (int64_t i = first * rows_of_step(); i < end * rows_of_step(); ++i)
    r.push_back(int64_t(permuted(epoch, uint64_t(i), uint64_t(all_->size()))));
  std::ranges::stable_sort(r, {}, [&](int64_t row) { return sizes_[size_t(row)]; });
  return r;
}
Batch ExampleBatches::next(Rng& rng) const {
  const int64_t steps = per_epoch() / o_.accumulate;
  const auto [epoch, place] = detail::next_in_epochs(rng, uint64_t(per_epoch()));
  const auto at = int64_t(place),
             step = int64_t(permuted(epoch.split(1), uint64_t(at / o_.accumulate), uint64_t(steps)));
  const int64_t within = step % sorted_steps();
  const std::vector<int64_t> all = sorted_rows(epoch, step - within);
  const auto of_step = std::span(all).subspan(size_t(within * rows_of_step()), size_t(rows_of_step()));
  return batch_of(of_step.subspan(size_t(at % o_.accumulate * o_.batch), size_t(o_.batch)), padded(of_step));
}
std::optional<Batch> ExampleBatches::at(int64_t i) const {
  if (i < 0 || i > (all_->size() - 1) / o_.batch) return std::nullopt;
  const auto part = std::span(by_size_).subspan(size_t(i * o_.batch));
  const auto some = part.first(std::min(part.size(), size_t(o_.batch)));
  return batch_of(some, padded(some));
}
double ExampleBatches::padding() const {
  double full = 0, all = 0;
  for (int64_t step = 0; step < per_epoch() / o_.accumulate; step += sorted_steps()) {
    const std::vector<int64_t> sorted = sorted_rows(Rng().split(0), step);
    for (auto rest = std::span(sorted); !rest.empty(); rest = rest.subspan(size_t(rows_of_step()))) {
      const auto of_step = rest.first(size_t(rows_of_step()));
      const int64_t sequences = rows_of_step() * (all_->pairs ? 2 : 1);
      all += double(sequences * padded(of_step)), full -= double(sequences);  // a last token is no input
      for (const int64_t row : of_step)
        for (const auto& e : all_->rows[size_t(row)]) full += double(e->tokens.size());
    }
  }
  return 1 - full / all;
}
// (B, T) of inputs and of targets; for pairs (B, 2, 2, T): chosen and rejected, of each its inputs and its targets.
Batch ExampleBatches::batch_of(std::span<const int64_t> some, int64_t length) const {
  const int64_t b = std::ssize(some);
  const bool pairs = all_->pairs;
  const auto filled = [](const Shape& shape, int32_t x) {
    Tensor t = empty(Layout::contiguous(shape, DType::i32));
    std::fill_n(t.mutable_data<int32_t>(), t.numel(), x);
    return t;
  };
  Batch batch{filled(pairs ? Shape{b, 2, 2, length} : Shape{b, length}, 0),
              filled(pairs ? Shape{b} : Shape{b, length}, pairs ? 0 : kIgnored)};
  auto *inputs = batch.inputs.mutable_data<int32_t>(), *targets = batch.targets.mutable_data<int32_t>();
  for (const int64_t r : some) {
    const Examples::Row& row = all_->rows[size_t(r)];
    int64_t at = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const TokenExample& e = *row[i];
      if (pairs) at = 0, std::fill_n(targets = inputs + length, length, kIgnored);
      const bool last = pairs || i + 1 == row.size();  // its last token is no input; a first one is no target
      std::copy(e.tokens.begin(), e.tokens.end() - last, inputs + at);
      std::copy(e.targets.begin() + 1, e.targets.end(), targets + at);
      at += std::ssize(e.tokens);
      if (last) inputs += pairs ? 2 * length : length, targets += length;
    }
  }
  return batch;
}

BatchSource example_batches(const ExampleBatches& train, Examples val) {
  BatchSource source;
  source.next = [train](Rng& rng) { return train.next(rng); };
  if (val.rows.empty()) return source;
  const int64_t batch = std::min(train.options().batch, val.size());
  source.validation = [all = ExampleBatches(std::move(val), {batch})](int64_t i) { return all.at(i); };
  return source;
}

}  // namespace tg
