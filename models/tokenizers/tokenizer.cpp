#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/tokenizer.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tg {
namespace {
using detail::append_utf8;
using detail::first_of;

constexpr std::string_view kBytes = "bytes", kCharacters = "characters";

template <class F> void for_each_character(std::string_view text, F f) {
  for (size_t at = 0; at < text.size();) {
    const detail::Utf8 c = first_of(text.substr(at));
    TG_CHECK(c.length > 0, value,
             "[tokenizer] byte {} of the text, {:#04x}, is not valid UTF-8. A character tokenizer reads UTF-8. Convert "
             "the text, or use the byte tokenizer.",
             at, uint8_t(text[at]));
    f(c.code, text.substr(at, c.length), at);
    at += c.length;
  }
}
// "'#' U+0023", or only the number.
std::string named(char32_t code, std::string_view character) {
  const bool printable = code >= 0x20 && (code < 0x7F || code >= 0xA0);
  return fmt::format("{}U+{:04X}", printable ? fmt::format("'{}' ", character) : "", uint32_t(code));
}
// Passes f(add)'s ids in chunks.
template <class F> void in_pieces(const Tokenizer::Take& take, F f) {
  constexpr size_t kMost = 1 << 13;
  std::vector<int64_t> ids;
  ids.reserve(kMost);
  const auto hand_on = [&] {
    if (!ids.empty()) take(ids);
    ids.clear();
  };
  f([&](int64_t id) {
    ids.push_back(id);
    if (ids.size() == kMost) hand_on();
  });
  hand_on();
}
[[noreturn]] void fail_json(std::string_view what) {
  detail::fail(Error::Kind::value, fmt::format("[tokenizer] the tokenizer's JSON is wrong: {}. It must be as to_json() "
                                               "writes it. Take it from the config of the model.",
                                               what));
}
}  // namespace

std::vector<int64_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int64_t> all;
  all.reserve(text.size());
  encode(text, options, [&](std::span<const int64_t> ids) { all.insert(all.end(), ids.begin(), ids.end()); });
  return all;
}
std::string Tokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  bool begins = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    check_id(ids[i], i);
    text += decode_next(ids[i], begins);
  }
  return text;
}
void Tokenizer::check_id(int64_t id, std::optional<size_t> position) const {
  TG_CHECK(id >= 0 && id < vocab_size(), value,
           "[tokenizer] id {}{} is not in the vocabulary. Ids must be in [0, {}). Decode with the "
           "tokenizer that the model was trained with.",
           id, position ? fmt::format(" at position {}", *position) : "", vocab_size());
}

std::string TextStream::add(int64_t id) {
  kept_ += tokenizer_->decode_next(id, begins_);
  const size_t whole = kept_.size() - detail::unfinished_at_end(kept_);
  std::string text = kept_.substr(0, whole);
  kept_.erase(0, whole);
  return text;
}
std::string TextStream::end() { return std::exchange(kept_, {}); }

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (size_t i = 0; i < stops_.size(); ++i)
    TG_CHECK(!stops_[i].empty(), value,
             "[tokenizer] stop {} is empty, which every text begins with. A stop has at least one byte.", i);
}
std::string StopStrings::add(std::string_view pre_token) {
  if (found_) return {};
  for (const char c : pre_token) {
    held_ += c;
    size_t stop = 0;
    for (const std::string& s : stops_)
      if (held_.ends_with(s)) stop = std::max(stop, s.size());
    if (stop == 0) continue;
    found_ = true;
    held_.resize(held_.size() - stop);
    return std::exchange(held_, {});
  }
  size_t held = 0;
  for (const std::string& s : stops_)
    for (size_t n = s.size() - 1; n > held; --n)
      if (held_.ends_with(std::string_view(s).substr(0, n))) held = n;
  std::string text = held_.substr(0, held_.size() - held);
  held_.erase(0, text.size());
  return text;
}
std::string StopStrings::end() { return std::exchange(held_, {}); }

void Tokenizer::encode_documents(std::span<const std::string_view> documents, EncodeOptions options,
                                 const Take& take) const {
  for (const std::string_view text : documents) encode(text, options, take);
}
std::string Tokenizer::special_in(std::string_view text) const {
  const std::vector<SpecialSpan> all = specials(text);
  return all.empty() ? "" : std::string(text.substr(all[0].at, all[0].end - all[0].at));
}
KnownText Tokenizer::known(std::string_view text) const { return {std::string(text), int64_t(text.size()), 0, ""}; }

void ByteTokenizer::encode(std::string_view text, EncodeOptions, const Take& take) const {
  in_pieces(take, [&](auto add) {
    for (const char c : text) add(int64_t(uint8_t(c)));
  });
}
std::string ByteTokenizer::decode_next(int64_t id, bool& begins) const {
  check_id(id);
  begins = false;
  return std::string(1, char(uint8_t(id)));
}
std::string ByteTokenizer::to_json() const { return detail::text_of(Json{{"type", kBytes}}); }

CharTokenizer CharTokenizer::from_text(std::string_view text) {
  TG_CHECK(!text.empty(), value,
           "[tokenizer] the text is empty. The characters of a text make the vocabulary of a character tokenizer. Pass "
           "the training text.");
  std::set<char32_t> seen;
  for_each_character(text, [&](char32_t code, std::string_view, size_t) { seen.insert(code); });
  return CharTokenizer({seen.begin(), seen.end()});
}
void CharTokenizer::encode(std::string_view text, EncodeOptions, const Take& take) const {
  in_pieces(take, [&](auto add) {
    for_each_character(text, [&](char32_t code, std::string_view character, size_t at) {
      const int64_t id = id_of(code);
      TG_CHECK(id >= 0, value,
               "[tokenizer] the character {} at byte {} is not among the {} of the model's vocabulary. A character "
               "tokenizer knows the characters of its training text only. Leave it out, as --unknown skip and "
               "Tokenizer::known() do, or train with the byte tokenizer.",
               named(code, character), at, characters_.size());
      add(id);
    });
  });
}
KnownText CharTokenizer::known(std::string_view text) const {
  constexpr size_t kNamed = 5;
  KnownText known;
  std::vector<char32_t> unknown;  // one more than a message names
  for_each_character(text, [&](char32_t code, std::string_view character, size_t) {
    ++known.characters;
    if (id_of(code) >= 0) {
      known.text += character;
      return;
    }
    ++known.skipped;
    if (unknown.size() > kNamed || std::ranges::find(unknown, code) != unknown.end()) return;
    known.first += unknown.empty() ? "" : ", ";
    known.first += unknown.size() < kNamed ? named(code, character) : "...";
    unknown.push_back(code);
  });
  TG_CHECK(known.skipped == 0 || !known.text.empty(), value,
           "[tokenizer] the text has no character of the model's vocabulary, which has {}: all {} are unknown, the "
           "first of them {}. Something must be left to encode. Pass a text like the one that the model was trained "
           "on, or train with the byte tokenizer.",
           characters_.size(), known.characters, known.first);
  return known;
}
int64_t CharTokenizer::id_of(char32_t code) const {
  const auto found = std::ranges::lower_bound(characters_, code);
  return found != characters_.end() && *found == code ? found - characters_.begin() : -1;
}
std::string CharTokenizer::decode_next(int64_t id, bool& begins) const {
  check_id(id);
  begins = false;
  std::string text;
  append_utf8(text, characters_[size_t(id)]);
  return text;
}
std::string CharTokenizer::to_json() const {
  std::string all;
  for (char32_t c : characters_) append_utf8(all, c);
  return detail::text_of(Json{{"characters", all}, {"type", kCharacters}});
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view text) {
  const Json json = detail::parse_json(text, "tokenizer", "the tokenizer's JSON", detail::kTokenizerDepth);
  if (!json.is_object()) fail_json("it is no JSON object");
  if (json.contains("model")) return detail::bpe_tokenizer(text);
  const auto field = [&](std::string_view key) {
    const Json* found = json.find(key);
    if (!found || !found->is_string()) fail_json(fmt::format("it has no string \"{}\"", key));
    return found->get<std::string>();
  };
  const std::string type = field("type");
  if (type != kBytes && type != kCharacters)
    fail_json(fmt::format("its type is \"{}\", which is neither \"{}\" nor \"{}\"", type, kBytes, kCharacters));
  for (const auto& [key, value] : json.items())
    if (key != "type" && (type == kBytes || key != "characters"))
      fail_json(fmt::format("type \"{}\" has no field \"{}\"", type, key));
  if (type == kBytes) return std::make_unique<ByteTokenizer>();

  std::vector<char32_t> characters;
  for_each_character(field("characters"), [&](char32_t code, std::string_view, size_t at) {
    if (!characters.empty() && characters.back() >= code)
      fail_json(fmt::format("the character U+{:04X} at byte {} of \"characters\" is not above the one before it",
                            uint32_t(code), at));
    characters.push_back(code);
  });
  if (characters.empty()) fail_json("\"characters\" is empty");
  return std::unique_ptr<Tokenizer>(new CharTokenizer(std::move(characters)));
}

}  // namespace tg
