#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <map>
#include <set>

namespace tg::detail {
namespace {

// A value and its path: "model.merges[3]".
class Field {
 public:
  Field(const Json& value, std::string path, const std::string& source)
      : value_(&value), path_(std::move(path)), source_(&source) {}

  [[noreturn]] void fail(std::string_view what) const {
    detail::fail(Error::Kind::value,
                 fmt::format("[tokenizer] {}: {} {}. Only the features in models/tokenizers/tokenizers.md are "
                             "supported. Use another tokenizer, or encode the text with the program that made it.",
                             *source_, path_.empty() ? "the text" : path_, what));
  }
  const Json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  Field operator[](std::string_view key) const {  // null if absent
    if (!value_->is_object()) fail("is not an object");
    return {value_->member(key), path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key), *source_};
  }
  std::vector<Field> elements() const {
    if (!value_->is_array()) fail("is not an array");
    std::vector<Field> all;
    for (size_t i = 0; i < value_->size(); ++i)
      all.emplace_back((*value_)[i], fmt::format("{}[{}]", path_, i), *source_);
    return all;
  }
  std::string text() const {
    if (!value_->is_string()) fail("is not a string");
    return value_->get<std::string>();
  }
  std::string text_that_is_not_empty() const {
    std::string all = text();
    if (all.empty()) fail("is empty");
    return all;
  }
  bool flag(bool otherwise = false) const {
    if (is_null()) return otherwise;
    if (!value_->is_boolean()) fail("is neither true nor false");
    return value_->get<bool>();
  }
  int32_t id() const {
    constexpr int64_t kMost = 1 << 20;
    const int64_t id = value_->is_number_integer() ? value_->get<int64_t>() : -1;
    if (id < 0 || id >= kMost)
      fail(fmt::format("is {}, and ids are whole numbers from 0 to {}", text_of(*value_), kMost - 1));
    return int32_t(id);
  }
  // Index of the value in `known`.
  size_t one_of(std::initializer_list<std::string_view> known) const {
    const std::string name = text();
    const auto found = std::ranges::find(known, name);
    if (found == known.end()) fail(fmt::format("is \"{}\", which is not known", name));
    return size_t(found - known.begin());
  }
  std::string type() const { return (*this)["type"].text(); }
  [[noreturn]] void unknown(const std::string& type) const {
    fail(fmt::format("has the type \"{}\", which is not known", type));
  }
  // This step, or those of a Sequence's `list`.
  std::vector<Field> steps(std::string_view list) const {
    // Each step reads all text; published tokenizers have <= 10.
    constexpr size_t kMost = 64;
    if (is_null()) return {};
    if (type() != "Sequence") return {*this};
    std::vector<Field> all;
    for (const Field& step : (*this)[list].elements())
      for (Field& s : step.steps(list)) all.push_back(std::move(s));
    if (all.size() > kMost) all[kMost].fail(fmt::format("is step {}, and there may be {}", kMost + 1, kMost));
    return all;
  }

 private:
  const Json* value_;
  std::string path_;
  const std::string* source_;
};

Regex pattern_of(const Field& regex) {
  try {
    return Regex(regex.text());
  } catch (const Error& e) {
    regex.fail(fmt::format("is refused: {}", e.what()));
  }
}

Replace replace_of(const Field& step) {
  return {step["pattern"]["String"].text_that_is_not_empty(), step["content"].text()};
}
void read_normalizer(const Field& root, BpeParts& parts) {
  for (const Field& step : root.steps("normalizers")) {
    const std::string type = step.type();
    if (type == "NFC")
      parts.normalizer.emplace_back(Nfc());
    else if (type == "Prepend")
      parts.normalizer.emplace_back(Prepend{step["prepend"].text_that_is_not_empty()});
    else if (type == "Replace")
      parts.normalizer.emplace_back(replace_of(step));
    else
      step.unknown(type);
  }
}

Metaspace::Prepend prepend_of(const Field& step) {
  const Field scheme = step["prepend_scheme"];
  if (!scheme.is_null()) return Metaspace::Prepend(scheme.one_of({"never", "first", "always"}));
  return step["add_prefix_space"].flag(true) ? Metaspace::Prepend::always : Metaspace::Prepend::never;
}
void read_cuts(const Field& root, BpeParts& parts) {
  for (const Field& step : root.steps("pretokenizers")) {
    const std::string type = step.type();
    if (parts.model.byte_level) step.fail("comes after ByteLevel, which must be the last");
    if (type == "ByteLevel") {
      ByteLevel bytes{.prefix_space = step["add_prefix_space"].flag(true)};
      if (step["use_regex"].flag(true)) bytes.split = Split{Regex(kGpt2Pattern)};
      if (bytes.prefix_space || bytes.split) parts.cuts.emplace_back(std::move(bytes));
      parts.model.byte_level = true;
    } else if (type == "Split") {
      const Field pattern = step["pattern"];
      Split split;
      split.matches =
          Split::Matches(step["behavior"].one_of({"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext"}));
      split.invert = step["invert"].flag();
      if (pattern["String"].is_null())
        split.at = pattern_of(pattern["Regex"]);
      else
        split.at = pattern["String"].text_that_is_not_empty();
      parts.cuts.emplace_back(std::move(split));
    } else if (type == "Digits") {
      parts.cuts.emplace_back(Split{Regex(step["individual_digits"].flag() ? kDigitPattern : kDigitsPattern)});
    } else if (type == "Metaspace") {
      Metaspace space{step["replacement"].text_that_is_not_empty(), prepend_of(step)};
      if (step["split"].flag(true)) space.split = Split{space.mark, Split::Matches::with_next};
      parts.cuts.emplace_back(std::move(space));
    } else {
      step.unknown(type);
    }
  }
}

void name_token(const Field& at, const std::string& name, int32_t id, BpeParts& parts, std::vector<bool>& taken) {
  const bool is_new = parts.names.emplace(name, id).second;
  if (size_t(id) >= taken.size()) taken.resize(size_t(id) + 1);
  if (!is_new || taken[size_t(id)]) at.fail(fmt::format("gives \"{}\" the id {}, which another token has", name, id));
  taken[size_t(id)] = true;
}

void read_merges(const Field& merges, BpeParts& parts) {
  if (!merges.value().is_array()) merges.fail("is not an array");
  const size_t count = merges.value().size();
  if (count > MergeTable::kMost) merges.fail(fmt::format("has {} elements, and may have {}", count, MergeTable::kMost));
  parts.model.merges = MergeTable(count);
  uint32_t rank = 0;
  for (const Json& merge : merges.value()) {
    const auto fail = [&](const std::string& what) {
      merges.fail(fmt::format("has the element {}, {}, {}", rank, text_of(merge), what));
    };
    std::string left, right;
    if (merge.is_string()) {
      const std::string both = merge.get<std::string>();
      const size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) fail("which is not two words");
      left = both.substr(0, space), right = both.substr(space + 1);
    } else {
      if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
        fail("which is neither two words nor a pair of strings");
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    }
    const auto id_of = [&](const std::string& name) {
      const int32_t id = parts.id_of(name);
      if (id < 0) fail(fmt::format("and the vocabulary has no \"{}\"", name));
      return id;
    };
    const int32_t a = id_of(left), b = id_of(right), merged = id_of(left + right);
    parts.model.merges.set(a, b, rank++, merged);
  }
}

void read_model(const Field& root, BpeParts& parts, std::vector<bool>& taken) {
  BpeModel& model = parts.model;
  if (const Field type = root["type"]; !type.is_null() && type.text() != "BPE") root.unknown(type.text());
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (const Field f = root[key]; !f.is_null() && f.value() != Json("") && f.value() != Json(0.0))
      f.fail(fmt::format("is {}, and must be null", text_of(f.value())));
  const Field vocabulary = root["vocab"];
  if (!vocabulary.value().is_object()) vocabulary.fail("is not an object");
  const auto& tokens = vocabulary.value().items();
  for (const auto& [name, id] : tokens) {
    const int32_t checked = Field(id, fmt::format("model.vocab[{}]", text_of(Json(name))), "").id();
    name_token(vocabulary, name, checked, parts, taken);
  }
  read_merges(root["merges"], parts);
  model.ignore_merges = root["ignore_merges"].flag();
  model.byte_fallback = root["byte_fallback"].flag();
  model.fuse_unknown = root["fuse_unk"].flag();
  if (const Field unknown = root["unk_token"]; !unknown.is_null()) {
    model.unknown = parts.id_of(unknown.text());
    if (model.unknown < 0) unknown.fail(fmt::format("is \"{}\", which is not in the vocabulary", unknown.text()));
  }
  model.byte_ids.resize(256);
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string name = fmt::format("<0x{:02X}>", byte);
    if (model.byte_level) append_utf8(name = "", byte_characters()[byte]);
    model.byte_ids[byte] = parts.id_of(name);
  }
  model.look_at_bytes();
  std::string bytes;
  Joiner joiner;
  for (const bool characters : {true, false})
    for (const auto& [name, id] : parts.names) {
      const bool is_character = !name.empty() && first_of(name).length == name.size();
      if (is_character != characters) continue;
      if (!model.byte_level)
        model.add(name, id, joiner);
      else if (bytes_of(name, bytes))
        model.add(bytes, id, joiner);
    }
}

std::vector<AddedToken> read_added(const Field& root, BpeParts& parts, std::vector<bool>& taken) {
  std::vector<AddedToken> all;
  if (root.is_null()) return all;
  for (const Field& f : root.elements()) {
    AddedToken t{f["content"].text_that_is_not_empty(),
                 f["id"].id(),
                 f["special"].flag(),
                 f["lstrip"].flag(),
                 f["rstrip"].flag(),
                 f["single_word"].flag(),
                 f["normalized"].flag()};
    const int32_t known = parts.id_of(t.content);
    if (known >= 0 && known != t.id)
      f.fail(fmt::format("gives \"{}\" the id {}, and the vocabulary {}", t.content, t.id, known));
    if (known < 0) name_token(f, t.content, t.id, parts, taken);
    all.push_back(std::move(t));
  }
  return all;
}

void read_template(const Field& root, BpeParts& parts) {
  for (const Field& step : root.steps("processors")) {
    const std::string type = step.type();
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing") step.unknown(type);
    bool text_seen = false;
    for (const Field& item : step["single"].elements()) {
      if (!item["Sequence"].is_null()) {
        if (text_seen) item.fail("has the text twice");
        text_seen = true;
        continue;
      }
      for (const Field& id : step["special_tokens"][item["SpecialToken"]["id"].text()]["ids"].elements())
        (text_seen ? parts.after : parts.before).push_back(id.id());
    }
    if (!text_seen) step["single"].fail("has no text");
  }
}

struct Decoder {
  bool byte_level = false, byte_fallback = false, fused = false;
  std::vector<Replace> replacements{};
  std::string of(const std::string& token) const {
    std::string text;
    if (byte_level && bytes_of(token, text)) return text;
    text = token;
    for (const Replace& r : replacements) text = r.of(text, most_bytes(token.size()));
    if (!byte_fallback || text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return text;
    const auto digit = [&](size_t at) { return std::string_view("0123456789ABCDEF").find(text[at]); };
    if (digit(3) > 15 || digit(4) > 15) return text;
    return std::string(1, char(uint8_t(digit(3) * 16 + digit(4))));
  }
};
Decoder read_decoder(const Field& root, BpeParts& parts) {
  Decoder d;
  if (root.is_null()) root.fail("is missing, and says how tokens become text");
  for (const Field& step : root.steps("decoders")) {
    const std::string type = step.type();
    if (type == "ByteLevel") {
      d.byte_level = true;
    } else if (type == "Replace") {
      d.replacements.push_back(replace_of(step));
    } else if (type == "ByteFallback") {
      d.byte_fallback = true;
    } else if (type == "Fuse") {
      d.fused = true;
    } else if (type == "Strip") {
      const bool known =
          d.fused && parts.leading.empty() && step["start"].value() == Json(1) && step["stop"].value() == Json(0);
      if (!known) step.fail("strips something other than one character at the front of the fused text");
      parts.leading = step["content"].text_that_is_not_empty();
    } else {
      step.unknown(type);
    }
  }
  if (d.byte_level && (d.byte_fallback || !d.replacements.empty())) root.fail("has other steps next to ByteLevel");
  return d;
}

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> all = [] {
    std::array<char32_t, 256> characters{};
    char32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      characters[b] = printable ? b : next++;
    }
    return characters;
  }();
  return all;
}
bool bytes_of(std::string_view token, std::string& to) {
  static const std::map<char32_t, char> bytes = [] {
    std::map<char32_t, char> all;
    for (size_t b = 0; b < 256; ++b) all[byte_characters()[b]] = char(uint8_t(b));
    return all;
  }();
  to.clear();
  while (!token.empty()) {
    const Utf8 c = first_of(token);
    const auto found = bytes.find(c.code);
    if (c.length == 0 || found == bytes.end()) return false;
    to += found->second;
    token.remove_prefix(c.length);
  }
  return true;
}

BpeParts read_bpe(const Json& json, const std::string& source) {
  const Field root(json, "", source);
  BpeParts parts;
  std::vector<bool> taken;
  // "truncation" and "padding" of batches are ignored: callers set them.
  read_normalizer(root["normalizer"], parts);
  read_cuts(root["pre_tokenizer"], parts);
  read_model(root["model"], parts, taken);
  const std::vector<AddedToken> added = read_added(root["added_tokens"], parts, taken);
  read_template(root["post_processor"], parts);
  const Decoder decoder = read_decoder(root["decoder"], parts);

  parts.texts.resize(taken.size());
  for (const auto& [name, id] : parts.names) parts.texts[size_t(id)] = decoder.of(name);
  std::set<int32_t> added_ids;
  for (const AddedToken& t : added) added_ids.insert(t.id);
  for (const auto& [name, id] : parts.names)
    if (!added_ids.contains(id)) parts.plain_size = std::max<int64_t>(parts.plain_size, id + 1);
  for (const char* name : {"</s>", "<|end_of_text|>", "<|endoftext|>"})  // the last one counts
    for (const AddedToken& t : added)
      if (t.special && t.content == name) parts.end_of_text = t.id;
  std::vector<AddedToken> in_text, in_normalized;
  for (AddedToken t : added) {
    if (decoder.byte_level) parts.texts[size_t(t.id)] = t.content;
    if (t.normalized) t.content = normalized(parts.normalizer, t.content);
    (t.normalized ? in_normalized : in_text).push_back(std::move(t));
  }
  parts.added = AddedTokens(std::move(in_text));
  parts.added_normalized = AddedTokens(std::move(in_normalized));
  for (const auto* ids : {&parts.before, &parts.after})
    for (const int32_t id : *ids)
      if (size_t(id) >= taken.size() || !taken[size_t(id)])
        root["post_processor"].fail(fmt::format("adds the id {}, which no token has", id));
  return parts;
}

}  // namespace tg::detail
