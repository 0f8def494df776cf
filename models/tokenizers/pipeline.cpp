#include <tapegrad/core/check.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>

namespace tg::detail {
namespace {

void check_bytes(size_t bytes, size_t most) {
  TG_CHECK(bytes <= most, value,
           "[tokenizer] its steps make {} bytes of a text or token, and may make {}, 16 times its size. Use another "
           "tokenizer.",
           bytes, most);
}
bool begins_with(const Regex& regex, std::string_view text) {
  return regex.matches_whole(text.substr(0, first_of(text).length));
}
bool is_space(std::string_view text) {
  static const Regex space(R"(\s)");
  return begins_with(space, text);
}
// \w of Unicode: letters, marks, letter numbers, digits, connectors, joiners, circled and squared letters.
bool is_word(std::string_view text) {
  static const Regex word(
      "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}_\u200c\u200d\u203f\u2040\u2054\u24b6-\u24e9\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
      "\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]");
  return begins_with(word, text);
}

void split_at_literal(std::string_view text, std::string_view literal, const Regex::Take& take) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t found = std::min(text.find(literal, begin), text.size());
    if (found > begin) take(begin, found, false);
    if (found < text.size()) take(found, found + literal.size(), true);
    begin = found + literal.size();
  }
}

class Cutter {
 public:
  Cutter(const std::vector<Cut>& cuts, const TakePreTokens& take) : cuts_(cuts), take_(take) {}
  void run(size_t step, std::string_view text, bool begins) {
    if (text.empty()) return;
    if (step < cuts_.size()) return std::visit([&](const auto& c) { apply(c, step + 1, text, begins); }, cuts_[step]);
    some_[count_++] = text;
    if (count_ == some_.size()) pass();
  }
  // Flushes pre-tokens, whose views are valid until then.
  void pass() {
    if (count_ > 0) take_({some_.data(), count_});
    count_ = 0;
  }

 private:
  void apply(const ByteLevel& c, size_t next, std::string_view text, bool begins) {
    if (!c.prefix_space || text[0] == ' ') return apply(c.split, next, text, begins);
    const std::string changed = " " + std::string(text);
    apply(c.split, next, changed, begins);
    pass();
  }
  void apply(const Metaspace& c, size_t next, std::string_view text, bool begins) {
    std::string changed = Replace{" ", c.mark}.of(text, most_bytes(text.size()));
    const bool wanted = c.prepend == Metaspace::Prepend::always || (c.prepend == Metaspace::Prepend::first && begins);
    if (wanted && !changed.starts_with(c.mark)) changed.insert(0, c.mark);
    check_bytes(changed.size(), most_bytes(text.size()));
    apply(c.split, next, changed, begins);
    pass();
  }
  void apply(const std::optional<Split>& c, size_t next, std::string_view text, bool begins) {
    c ? apply(*c, next, text, begins) : run(next, text, begins);
  }
  void apply(const Split& c, size_t next, std::string_view text, bool begins) {
    const auto* const pattern = std::get_if<Regex>(&c.at);
    if (pattern && c.matches == Split::Matches::alone)
      return void(pattern->split(
          text, [&](size_t from, size_t to, bool) { run(next, text.substr(from, to - from), begins && from == 0); }));
    size_t begin = 0, end = 0;  // may grow
    bool last_matched = false;
    const auto end_one = [&] {
      if (end > begin) run(next, text.substr(begin, end - begin), begins && begin == 0);
    };
    const auto join = [&](size_t from, size_t to, bool matched) {
      matched = matched != c.invert;
      const bool grows = (c.matches == Split::Matches::with_previous && matched && !last_matched) ||
                         (c.matches == Split::Matches::with_next && !matched && last_matched);
      if (!grows) {
        end_one();
        begin = from;
      }
      end = to;
      if (c.matches == Split::Matches::removed && matched) begin = end;
      last_matched = matched;
    };
    if (pattern)
      pattern->split(text, join);
    else
      split_at_literal(text, std::get<std::string>(c.at), join);
    end_one();
  }

  const std::vector<Cut>& cuts_;
  const TakePreTokens& take_;
  std::array<std::string_view, 32> some_;
  size_t count_ = 0;
};

}  // namespace

std::string Replace::of(std::string_view text, size_t most) const {
  std::string all;
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    all += text.substr(at, found - at);
    check_bytes(all.size(), most);
    if (found == std::string_view::npos) return all;
    all += to;
    at = found + from.size();
  }
}
std::string normalized(const std::vector<Normalization>& steps, std::string_view text) {
  std::string all(text);
  const size_t most = most_bytes(text.size());
  for (const Normalization& step : steps) {
    if (all.empty()) break;
    if (const auto* replace = std::get_if<Replace>(&step))
      all = replace->of(all, most);
    else
      all = std::holds_alternative<Nfc>(step) ? nfc(all) : std::get<Prepend>(step).text + all;
    check_bytes(all.size(), most);
  }
  return all;
}
const Regex* plain_pattern(const Cut& c) {
  const auto* split = std::get_if<Split>(&c);
  if (const auto* bytes = std::get_if<ByteLevel>(&c))
    split = bytes->split && !bytes->prefix_space ? &*bytes->split : nullptr;
  return split && split->matches == Split::Matches::alone ? std::get_if<Regex>(&split->at) : nullptr;
}
void cut(const std::vector<Cut>& cuts, std::string_view text, bool begins, const TakePreTokens& take) {
  Cutter cutter(cuts, take);
  cutter.run(0, text, begins);
  cutter.pass();
}

size_t part_end(const std::vector<Cut>& cuts, std::string_view text, size_t from) {
  // Matches of named patterns and Digits end after letters and after digits.
  static const Regex ends(R"(\p{L}(?=\P{L})|\p{N}(?=\P{N}))");
  for (const Cut& c : cuts) {
    const Regex* plain = plain_pattern(c);
    if (!plain || from >= text.size()) break;
    const std::string_view pattern = plain->text();
    if (pattern == kGpt2Pattern || pattern == kLlama3Pattern || pattern == kQwen2Pattern)
      return from + ends.split(
                        text.substr(from), [](size_t, size_t, bool) {}, 1);
    if (pattern != kDigitPattern && pattern != kDigitsPattern) break;
  }
  return text.size();
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::stable_sort(tokens_, {}, &AddedToken::content);
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    const auto first = uint8_t(content[0]);
    Group& group = by_first_byte_[first];
    std::string& prefix = group.prefix;
    if (group.end == 0) prefix = content, group.begin = i;
    prefix.erase(std::mismatch(prefix.begin(), prefix.end(), content.begin(), content.end()).first, prefix.end());
    group.end = i + 1;
    begins_one_[first] = true;
    int32_t shorter = int32_t(i) - 1;
    while (shorter >= 0 && !content.starts_with(tokens_[size_t(shorter)].content)) shorter = shorter_[size_t(shorter)];
    shorter_.push_back(shorter);
  }
}
// Only the last token that does not sort after the text, or a prefix of it, can match.
const AddedToken* AddedTokens::at(std::string_view text) const {
  const Group& group = by_first_byte_[uint8_t(text[0])];
  if (!text.starts_with(group.prefix)) return nullptr;
  const auto begin = tokens_.begin() + group.begin, end = tokens_.begin() + group.end;
  auto i = int32_t(std::ranges::upper_bound(begin, end, text, {},
                                            [](const AddedToken& t) { return std::string_view(t.content); }) -
                   tokens_.begin()) -
           1;
  if (i < int32_t(group.begin)) return nullptr;
  const std::string& last = tokens_[size_t(i)].content;
  const auto common = size_t(std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
  while (i >= 0 && tokens_[size_t(i)].content.size() > common) i = shorter_[size_t(i)];
  return i < 0 ? nullptr : &tokens_[size_t(i)];
}
void AddedTokens::find(std::string_view text, bool parse_special, const Take& take) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* token = begins_one_[uint8_t(text[at])] ? this->at(text.substr(at)) : nullptr;
    if (!token) {  // nearly every byte
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && ((begin > 0 && is_word(text.substr(last_at(text.substr(0, begin))))) ||
                               (end < text.size() && is_word(text.substr(end)))))
      continue;
    if (token->left_strip)
      while (begin > done && is_space(text.substr(last_at(text.substr(0, begin)))))
        begin = last_at(text.substr(0, begin));
    if (token->right_strip)
      while (end < text.size() && is_space(text.substr(end))) end += first_of(text.substr(end)).length;
    begin = std::max(begin, done);
    if (begin > done) take(done, begin, nullptr);
    take(begin, end, token);
    done = end;
  }
  if (done < text.size()) take(done, text.size(), nullptr);
}

}  // namespace tg::detail
