#include <fmt/ranges.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/data/token_file.h>

#include <array>
#include <map>
#include <numeric>

namespace tg {
namespace {
constexpr int32_t kIgnored = int32_t(Batch::kIgnoreIndex);

std::string text_in(const Json& object, const std::string& key, const std::string& place = "") {
  const Json& x = object.at(key);
  TG_CHECK(x.is_string(), value, "[examples] {}'{}' is {}. It must be a text in quotes.", place, key, x.type_name());
  return x.get<std::string>();
}

// Keys: of kinds of lines; of some kinds; that the template must mention (in a line, in a message); that say whether a
// reply counts; refused.
constexpr std::string_view kParts[] = {"messages", "prompt",      "completion", "chosen",
                                       "rejected", "instruction", "output",     "text"},
                           kShared[] = {"system", "history", "input", "chat_template_kwargs"},
                           kOfLine[] = {"tools", "functions", "documents", "enable_thinking"},
                           kOfMessage[] = {"tools", "functions", "documents", "tool_calls", "function_call",
                                           "name",  "prefix",    "reasoning", "thinking",   "reasoning_content"},
                           kCounts[] = {"weight", "train", "trainable", "mask", "loss_mask", "label"},
                           kRefused[] = {"image", "images", "video", "videos", "audio", "audios", "chat_template"};
bool holds(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

class LineReader {
 public:
  LineReader(const Tokenizer& tokenizer, const ExampleOptions& o) : tokenizer_(tokenizer), o_(o) {}
  int64_t cut = 0;                        // cut examples of the last line
  std::vector<std::string> ignored = {};  // keys without an effect
  Examples::Row read(const Json& line) {
    cut = 0, ignored.clear(), used_.clear();
    const bool counted = !line.is_object() || check_keys(line, true, "");
    Examples::Row row;
    if (o_.pairs) {
      if (!has(line, {"prompt", "chosen", "rejected"})) refuse(line, "prompt, chosen and rejected");
      row = {answered(line, "chosen", counted), answered(line, "rejected", counted)};
      TG_CHECK(row[0]->tokens != row[1]->tokens, value,
               "[examples] 'chosen' and 'rejected' have the same {} tokens{}. A pair must differ: correct it or leave "
               "it out.",
               row[0]->tokens.size(), cut > 0 ? " within the context" : "");
    } else {
      row = {example_of(line, counted)};
    }
    for (const auto& [key, x] : line.items()) {
      if (x.is_blank() || holds(used_, key)) continue;
      TG_CHECK(!holds(kShared, key) && !holds(kOfLine, key), value,
               "[examples] '{}' is given, and a line with {} has none. Leave it out.", key, detail::listed(used_));
      if (holds(kParts, key)) ignored.push_back(key);
    }
    return row;
  }

 private:
  using Example = std::shared_ptr<const TokenExample>;
  bool has(const Json& line, std::initializer_list<std::string_view> keys) {
    if (!line.is_object() || !std::ranges::all_of(keys, [&](std::string_view k) { return line.contains(k); }))
      return false;
    used_.insert(used_.end(), keys);
    return true;
  }
  bool given(const Json& line, std::string_view key) {
    if (line.member(key).is_blank()) return false;
    return used_.push_back(key), true;
  }
  [[noreturn]] void refuse(const Json& line, std::string_view kinds) const {
    std::vector<std::string_view> keys;
    if (line.is_object())
      for (const auto& [key, x] : line.items()) keys.push_back(key);
    throw Error(Error::Kind::value,
                fmt::format("[examples] {}. A line is an object with {}. {}.",
                            line.is_object() ? "the keys are " + (keys.empty() ? "none" : detail::listed(keys))
                                             : fmt::format("the line holds {}", line.type_name()),
                            kinds,
                            !line.is_object() || line.contains("chosen") == o_.pairs ? "Rename its keys"
                            : o_.pairs ? "Leave out --objective dpo, or rename its keys"
                                       : "Pass --objective dpo"));
  }
  // Whether replies count. An Error for a key that would be lost.
  bool check_keys(const Json& object, bool line, const std::string& place) {
    bool counted = true;
    for (const auto& [key, x] : object.items()) {
      if (line ? holds(kParts, key) || holds(kShared, key) : key == "role" || key == "content") continue;
      const bool passed = line ? holds(kOfLine, key) : holds(kOfMessage, key), refused = holds(kRefused, key),
                 thought = key == "reasoning" || key == "thinking",
                 mentioned = o_.chat.mentions(key) || (thought && o_.chat.mentions("reasoning_content"));
      if (holds(kCounts, key)) {
        const bool yes = x.is_null() || x == Json(true) || x == Json(1), no = x == Json(false) || x == Json(0);
        TG_CHECK(yes || (no && o_.loss == ExampleLoss::completion), value,
                 "[examples] {}'{}' is {}. It says whether replies count: 1 or true; with --loss completion also 0 or "
                 "false. Correct it.",
                 place, key, detail::text_of(x));
        counted &= yes;
      } else if (passed || refused) {
        TG_CHECK((passed && mentioned) || x.is_blank(), value,
                 "[examples] {}'{}' is given, and the chat template {} does not take it. It would be lost. Leave it "
                 "out, or pass a template with it by --chat-format.",
                 place, key, o_.chat.name());
      } else if ((line || !mentioned) && std::ranges::find(ignored, key) == ignored.end()) {
        ignored.push_back(key);
      }
    }
    return counted;
  }

  // A conversation and which messages count.
  struct Talk {
    Json context = Json::object(), messages = Json::array();
    std::vector<bool> counts = {};
    void add(const char* role, const std::string& content, bool counted) {
      messages.push_back({{"role", role}, {"content", content}}), counts.push_back(counted);
    }
  };
  // System message, history and template variables of a line.
  Talk begun(const Json& line, bool history) {
    Talk t;
    if (given(line, "system")) t.add("system", text_in(line, "system"), false);
    for (const std::string_view key : kOfLine)
      if (given(line, key)) {
        const Json& x = line.at(key);  // tables with one type per column store lists as text
        t.context[key] = x.is_string() ? detail::parse_json(x.get<std::string>(), "examples", std::string(key), 64) : x;
      }
    if (given(line, "chat_template_kwargs"))
      for (const auto& [key, x] : line["chat_template_kwargs"].items()) {
        TG_CHECK(o_.chat.mentions(key), value,
                 "[examples] '{}' is in chat_template_kwargs, and the chat template {} does not take it. Leave it out.",
                 key, o_.chat.name());
        t.context[key] = x;
      }
    if (!history || !given(line, "history")) return t;
    const auto is_pair = [](const Json& x) {
      return x.is_array() && x.size() == 2 && x[0].is_string() && x[1].is_string();
    };
    TG_CHECK(line["history"].is_array() && std::ranges::all_of(line["history"], is_pair), value,
             "[examples] 'history' is {}. It must be a list of pairs of texts.",
             detail::text_of(line["history"]).substr(0, 100));
    for (const Json& turn : line["history"])
      t.add("user", turn[0].get<std::string>(), false), t.add("assistant", turn[1].get<std::string>(), false);
    return t;
  }
  // Adds messages, or a text with role `role`.
  void add_messages(const Json& line, const std::string& key, const char* role, bool counted, Talk& t) {
    const Json& x = line.at(key);
    if (role && x.is_string()) return t.add(role, x.get<std::string>(), counted);
    TG_CHECK(x.is_array(), value, "[examples] '{}' is {}. It must be {}a list of messages.", key, x.type_name(),
             role ? "a text or " : "");
    for (const Json& m : x) {
      const std::string place = fmt::format("message {} of '{}': ", t.counts.size(), key);
      TG_CHECK(m.is_object() && m.contains("role") && (m.contains("content") || m.contains("tool_calls")), value,
               "[examples] {}no role and content. A message is {{\"role\": ..., \"content\": ...}}.", place);
      const Json& content = m.member("content");
      if (content.is_array())
        for (const Json& part : content)
          TG_CHECK(o_.chat.mentions("type") && part.member("type") == Json("text"), value,
                   "[examples] {}'content' has {}. The chat template {} takes {}. Join its texts.", place,
                   detail::text_of(part).substr(0, 100), o_.chat.name(),
                   o_.chat.mentions("type") ? "texts" : "one text");
      else if (m.member("tool_calls").is_blank())
        (void)text_in(m, "content", place);
      t.counts.push_back(check_keys(m, false, place) && counted && text_in(m, "role", place) == "assistant");
      t.messages.push_back(m);
    }
  }
  Example example_of(const Json& line, bool counted) {
    if (has(line, {"messages"})) {
      Talk t = begun(line, false);
      add_messages(line, "messages", nullptr, counted, t);
      return conversation(std::move(t));
    }
    if (has(line, {"prompt", "completion"})) return answered(line, "completion", counted);
    if (has(line, {"instruction", "output"})) {
      Talk t = begun(line, true);
      std::string user = text_in(line, "instruction");
      const bool alpaca = o_.chat.text().find("### Instruction:") != std::string::npos;
      if (given(line, "input")) user += (alpaca ? "\n\n### Input:\n" : "\n\n") + text_in(line, "input");
      t.add("user", user, false);
      add_messages(line, "output", "assistant", counted, t);
      return conversation(std::move(t));
    }
    if (!has(line, {"text"}))
      refuse(line,
             "messages; prompt and completion; instruction and output; or text. Prompt, chosen and rejected are "
             "for DPO");
    TokenExample e;
    add(e, tokenizer_.encode(text_in(line, "text"), {.add_special = true}), counted);
    if (end_.empty()) end_ = tokenizer_.encode(o_.end, {.parse_special = true});
    const bool ended = e.tokens.size() >= end_.size() && std::equal(end_.rbegin(), end_.rend(), e.tokens.rbegin());
    if (!ended) add(e, end_, counted);
    return finished(std::move(e));
  }
  Example answered(const Json& line, const std::string& key, bool counted) {
    Talk t = begun(line, true);
    add_messages(line, "prompt", "user", false, t);
    add_messages(line, key, "assistant", counted, t);
    return conversation(std::move(t));
  }
  Example conversation(Talk t) {
    for (const Json& m : t.messages)
      TG_CHECK(m["role"] != Json("assistant") || !m.member("content").is_blank() || !m.member("tool_calls").is_blank(),
               value,
               "[examples] a reply of the assistant is empty. There is nothing to learn from it: fill it or leave it "
               "out.");
    t.context["messages"] = std::move(t.messages);
    const auto [ids, counts] = o_.chat.example(tokenizer_, t.context, t.counts);
    TokenExample e;
    for (size_t i = 0; i < ids.size(); ++i) add(e, {&ids[i], 1}, counts[i] || o_.loss == ExampleLoss::all);
    return finished(std::move(e));
  }
  static void add(TokenExample& e, std::span<const int64_t> ids, bool counts) {
    for (const int64_t id : ids) e.tokens.push_back(int32_t(id)), e.targets.push_back(counts ? int32_t(id) : kIgnored);
  }
  Example finished(TokenExample e) {
    const auto before = e.tokens.size(), most = size_t(o_.context) + 1;
    if (before > most) e.tokens.resize(most), e.targets.resize(most), ++cut;
    e.tokens.shrink_to_fit(), e.targets.shrink_to_fit();
    // The first token is no target.
    const bool counts =
        std::any_of(e.targets.begin() + (before > 0), e.targets.end(), [](int32_t t) { return t != kIgnored; });
    TG_CHECK(counts, value,
             "[examples] none of its {} tokens counts in the loss, or none within the context of {}. At least one "
             "must: use a larger context or --window, or skip such lines (--skip-bad true).",
             before, o_.context);
    return std::make_shared<const TokenExample>(std::move(e));
  }

  const Tokenizer& tokenizer_;
  ExampleOptions o_;
  std::vector<int64_t> end_;
  std::vector<std::string_view> used_;  // used keys
};

}  // namespace

bool detail::holds_examples(const std::string& path) {
  constexpr int64_t kLines = 100;  // some may be wrong
  bool holds = false;
  if (is_token_file(path)) return false;
  for_each_line(path, [&](std::string_view text, int64_t number) {
    const Json line = json_or_null(text);
    holds = line.is_object() && std::ranges::any_of(std::array{"messages", "conversations", "prompt", "instruction"},
                                                    [&](const char* key) { return line.contains(key); });
    return !line.is_object() && number < kLines && path.ends_with(".jsonl");
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
        all.rows.push_back(reader.read(detail::parse_json(line, "examples", "the line", 64)));
        all.cut += reader.cut;
        if (all.ignored.empty() && !reader.ignored.empty())
          all.ignored = fmt::format("'{}' in {}:{}", fmt::join(reader.ignored, "', '"), path, number);
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
  std::multimap<size_t, size_t> rooms;  // free tokens, row
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
// Rows of the epoch's steps [first, first + sorted_steps()), short to long.
std::vector<int64_t> ExampleBatches::sorted_rows(Rng epoch, int64_t first) const {
  const int64_t end = std::min(per_epoch() / o_.accumulate, first + sorted_steps());
  std::vector<int64_t> r;
  for (int64_t i = first * rows_of_step(); i < end * rows_of_step(); ++i)
    r.push_back(int64_t(detail::permuted(epoch, uint64_t(i), uint64_t(all_->size()))));
  std::ranges::stable_sort(r, {}, [&](int64_t row) { return sizes_[size_t(row)]; });
  return r;
}
Batch ExampleBatches::next(Rng& rng) const {
  const int64_t steps = per_epoch() / o_.accumulate;
  const auto [epoch, place] = detail::next_in_epochs(rng, uint64_t(per_epoch()));
  const auto at = int64_t(place),
             step = int64_t(detail::permuted(epoch.split(1), uint64_t(at / o_.accumulate), uint64_t(steps)));
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
// (B, T) inputs and targets; pairs (B, 2, 2, T): chosen and rejected, inputs and targets.
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
      const bool last = pairs || i + 1 == row.size();  // last: no input; first: no target
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
