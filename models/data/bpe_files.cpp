#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/bpe_parts.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace tg {
namespace detail {

Json byte_level_json(Json vocabulary, Json merges, std::string_view pattern, bool ignore_merges) {
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  Json cuts = bytes;
  if (!pattern.empty()) {
    const Json split{
        {"type", "Split"}, {"pattern", Json{{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    cuts = Json{{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  }
  Json model{{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr},
             {"fuse_unk", false},
             {"byte_fallback", false},
             {"ignore_merges", ignore_merges}};
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  Json all{
      {"version", "1.0"},      {"truncation", nullptr}, {"padding", nullptr},        {"added_tokens", Json::array()},
      {"normalizer", nullptr}, {"pre_tokenizer", cuts}, {"post_processor", nullptr}, {"decoder", bytes}};
  all["model"] = std::move(model);
  return all;
}
std::string as_characters(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) append_utf8(text, byte_characters()[uint8_t(b)]);
  return text;
}
Json added_token(std::string_view content, const Json& id, bool special) {
  return Json{{"id", id},        {"content", content},     {"single_word", false}, {"lstrip", false},
              {"rstrip", false}, {"normalized", !special}, {"special", special}};
}
std::string_view pattern_named(std::string_view name) {
  return name == "gpt2" ? kGpt2Pattern : name == "llama3" ? kLlama3Pattern : name == "qwen2" ? kQwen2Pattern : "";
}

}  // namespace detail

namespace {
using detail::added_token, detail::as_characters, detail::byte_level_json;
using detail::kGpt2Pattern, detail::kQwen2Pattern;

// Skips empty lines. Numbers count from 1.
template <class F> void for_each_line(std::string_view text, F f) {
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) f(line, number);
    begin = end + 1;
  }
}
[[noreturn]] void fail_line(const std::string& source, size_t number, std::string_view rule) {
  detail::fail(Error::Kind::value, fmt::format("[tokenizer] {}, line {}: {} Restore the file.", source, number, rule));
}

std::string from_base64(std::string_view text, const std::string& source, size_t number) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  const size_t digits = std::min(text.find('='), text.size());
  const bool filled = text.find_first_not_of('=', digits) == std::string_view::npos && text.size() - digits <= 2;
  if (text.size() % 4 != 0 || !filled) fail_line(source, number, "the token is not base64.");
  uint32_t bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) fail_line(source, number, "the token is not base64.");
    bits = bits << 6 | uint32_t(digit);
    if (i % 4 != 0) bytes += char(uint8_t(bits >> (6 - 2 * (i % 4))));
  }
  return bytes;
}
constexpr const char* kWayOut =
    "Write tokenizer.json in Python: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder).";
constexpr const char* kEnd = "<|endoftext|>";
Json merges_of(std::string_view merges, const std::string& source) {
  Json list = Json::array();
  for_each_line(merges, [&](std::string_view line, size_t number) {
    if (number == 1 && line.starts_with("#version")) return;
    if (std::count(line.begin(), line.end(), ' ') != 1 || line.front() == ' ' || line.back() == ' ')
      fail_line(source, number, "a merge has two words.");
    list.push_back(line);
  });
  return list;
}
Json json_of_vocab(Json vocabulary, Json merges, std::string_view pattern) {
  Json json = byte_level_json(std::move(vocabulary), std::move(merges), pattern, false);
  if (const Json* id = json["model"]["vocab"].find(kEnd)) json["added_tokens"].push_back(added_token(kEnd, *id, true));
  return json;
}

// The JSON object in a file of a folder, or an empty one.
Json object_in(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  if (!path_exists(path)) return Json::object();
  Json json = parse_json(MappedFile(path).text(), "tokenizer", path, 8);
  TG_CHECK(json.is_object(), value, "[tokenizer] {} is not an object. Restore the file.", path);
  return json;
}

// Adds ids of the folder's other files to a tokenizer.json, like transformers.
class FolderSettings {
 public:
  FolderSettings(const std::string& folder, const Json& config, Json& json)
      : folder_(folder), config_(config), json_(json) {
    if (const Json* list = json.find("added_tokens"); list && list->is_array())
      for (const Json& t : *list)
        if (const Json* content = t.is_object() ? t.find("content") : nullptr; content && content->is_string())
          known_.insert(content->get<std::string>());
  }
  // Returns whether anything changed.
  bool enter() {
    const Json map = object_in(folder_, "special_tokens_map.json"), added = object_in(folder_, "added_tokens.json");
    for (const Json* file : {&config_, &map})
      each_special(*file, [&](const Json& t) { special_.insert(text_of_token(t)); });
    if (const Json* list = config_.find("added_tokens_decoder"); list && list->is_object())
      for (const auto& [id, t] : list->items()) add(t, id_of(id));
    for (const auto& [content, id] : added.items()) add(Json(content), id);
    for (const Json* file : {&config_, &map}) each_special(*file, [&](const Json& t) { add(t, nullptr); });
    return changed_;
  }

 private:
  Json id_of(const std::string& digits) const {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    TG_CHECK(
        error == std::errc() && end == digits.data() + digits.size() && id >= 0, value,
        "[tokenizer] {}/tokenizer_config.json: added_tokens_decoder has the id \"{}\". It must be a number. Restore "
        "the file.",
        folder_, digits);
    return id;
  }
  template <class F> static void each_special(const Json& file, F f) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
                            "additional_special_tokens", "extra_special_tokens"}) {
      const Json* t = file.find(key);
      if (!t) continue;
      if (t->is_array() || (t->is_object() && !t->contains("content")))  // a list, or by name
        for (const Json& x : *t) f(x);
      else
        f(*t);
    }
  }
  // Takes a text or an object with "content".
  static std::string text_of_token(const Json& t) {
    const Json* content = t.is_object() ? t.find("content") : &t;
    return content && content->is_string() ? content->get<std::string>() : "";
  }
  // Default: the id in the vocabulary, or the next one.
  void add(const Json& t, Json id) {
    const std::string text = text_of_token(t);
    if (text.empty() || !known_.insert(text).second) return;
    if (id.is_null()) {
      read_ids();
      const auto in = ids_.find(text);
      id = in != ids_.end() ? in->second : next_id_;
    }
    Json all = added_token(text, id, special_.contains(text));
    if (t.is_object())
      for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"})
        if (const Json* x = t.find(key)) all[key] = *x;
    if (ids_read_ && id.is_number_integer()) next_id_ = std::max(next_id_, id.get<int64_t>() + 1);
    Json& list = json_["added_tokens"];
    if (list.is_null()) list = Json::array();
    if (list.is_array()) list.push_back(std::move(all));
    changed_ = true;
  }
  void read_ids() {
    if (std::exchange(ids_read_, true)) return;
    const auto take = [&](const std::string& name, const Json* id) {
      if (!id || !id->is_number_integer()) return;
      ids_.emplace(name, id->get<int64_t>());
      next_id_ = std::max(next_id_, id->get<int64_t>() + 1);
    };
    const Json* model = json_.find("model");
    const Json* vocabulary = model && model->is_object() ? model->find("vocab") : nullptr;
    if (vocabulary && vocabulary->is_object())
      for (const auto& [name, id] : vocabulary->items()) take(name, &id);
    if (const Json* list = json_.find("added_tokens"); list && list->is_array())
      for (const Json& t : *list)
        if (t.is_object()) take(text_of_token(t), t.find("id"));
  }

  const std::string& folder_;
  const Json& config_;
  Json& json_;
  std::set<std::string> known_, special_;  // contents of added tokens, of special tokens
  std::map<std::string, int64_t> ids_;
  int64_t next_id_ = 0;
  bool ids_read_ = false, changed_ = false;
};

// The tokenizer.json for vocab.json and merges.txt, by the class in tokenizer_config.json.
Json json_of_vocab(const std::string& folder, const Json& config) {
  const Json *named = config.find("tokenizer_class"), *prefix = config.find("add_prefix_space");
  std::string type = named && named->is_string() ? named->get<std::string>() : "GPT2Tokenizer";
  if (type.ends_with("Fast")) type.resize(type.size() - 4);
  const bool qwen = type == "Qwen2Tokenizer", prefixed = prefix && *prefix == Json(true);
  TG_CHECK(qwen || type == "GPT2Tokenizer", value,
           "[tokenizer] {}/tokenizer_config.json names the class {}, and vocab.json with merges.txt is supported for "
           "GPT2Tokenizer and Qwen2Tokenizer only. {}",
           folder, type, kWayOut);
  TG_CHECK(!qwen || !prefixed, value,
           "[tokenizer] {}/tokenizer_config.json sets add_prefix_space for Qwen2Tokenizer, which is not supported. {}",
           folder, kWayOut);
  const std::string vocabulary = folder + "/vocab.json", merges = folder + "/merges.txt";
  Json json = json_of_vocab(parse_json(MappedFile(vocabulary).text(), "tokenizer", vocabulary),
                            merges_of(MappedFile(merges).text(), merges), qwen ? kQwen2Pattern : kGpt2Pattern);
  if (qwen) json["normalizer"] = Json{{"type", "NFC"}};
  if (prefixed)
    json["pre_tokenizer"] =
        Json{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  return json;
}
}  // namespace

BpeTokenizer BpeTokenizer::from_vocab(std::string_view vocab_json, std::string_view merges, const std::string& source) {
  return from_parsed(
      json_of_vocab(parse_json(vocab_json, "tokenizer", source), merges_of(merges, source), kGpt2Pattern), "", source);
}

BpeTokenizer BpeTokenizer::from_ranks(std::string_view ranks, std::string_view pattern, const std::string& source) {
  const std::string_view splits = detail::pattern_named(pattern);
  TG_CHECK(
      !splits.empty(), value,
      "[tokenizer] {} holds ranks, which need a pattern, and \"{}\" is none. It must be gpt2, llama3 or qwen2. Name "
      "that of the model.",
      source, pattern);
  std::vector<std::pair<int64_t, std::string>> tokens;
  for_each_line(ranks, [&](std::string_view line, size_t number) {
    const size_t space = line.find(' ');
    const std::string_view digits = space < line.size() ? line.substr(space + 1) : "";
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size() || rank < 0)
      fail_line(source, number, "it must be a token in base64 and its rank.");
    tokens.emplace_back(rank, from_base64(line.substr(0, space), source, number));
  });
  std::sort(tokens.begin(), tokens.end());
  std::vector<std::string_view> known_bytes;
  for (const auto& [rank, bytes] : tokens) known_bytes.push_back(bytes);
  std::sort(known_bytes.begin(), known_bytes.end());
  const auto is_token = [&](std::string_view bytes) {
    return std::binary_search(known_bytes.begin(), known_bytes.end(), bytes);
  };
  Json vocabulary = Json::object(), merges = Json::array();
  std::map<std::string, int64_t> ids;
  constexpr size_t kLongest = 1024;
  size_t room = 64 * ranks.size() + (1 << 20);  // for the texts of merges
  for (const auto& [rank, bytes] : tokens) {
    TG_CHECK(ids.emplace(as_characters(bytes), rank).second, value,
             "[tokenizer] {}: the token of rank {} comes twice. Restore the file.", source, rank);
    TG_CHECK(bytes.size() <= kLongest, value,
             "[tokenizer] {}: the token of rank {} has {} bytes, and may have {}. Take another tokenizer.", source,
             rank, bytes.size(), kLongest);
    // tiktoken ranks the merged token, so every split into two tokens is a rule.
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string_view left = std::string_view(bytes).substr(0, cut), right = std::string_view(bytes).substr(cut);
      if (!is_token(left) || !is_token(right)) continue;
      TG_CHECK(bytes.size() <= room, value,
               "[tokenizer] {}: its tokens can be cut into tokens in too many ways, {} times what the file has. Take "
               "another tokenizer.",
               source, 64);
      room -= bytes.size();
      merges.push_back(Json::array({as_characters(left), as_characters(right)}));
    }
  }
  return from_json(text_of(byte_level_json(Json(ids), std::move(merges), splits, true)), source);
}

BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern) {
  const auto text_of_file = [](const std::string& file) { return std::string(MappedFile(file).text()); };
  if (!is_folder(path)) {
    if (path.ends_with(".tiktoken")) return BpeTokenizer::from_ranks(text_of_file(path), pattern, path);
    TG_CHECK(!path.ends_with(".model"), value, "[tokenizer] {} is a file of SentencePiece, which is not supported. {}",
             path, kWayOut);
    TG_CHECK(!path.ends_with("vocab.json") && !path.ends_with("merges.txt"), value,
             "[tokenizer] {} is one of the two files vocab.json and merges.txt, which are read together. Name their "
             "folder.",
             path);
    return BpeTokenizer::from_json(text_of_file(path), path);
  }
  const std::string file = path + "/tokenizer.json";
  const bool whole = path_exists(file);
  TG_CHECK(whole || (path_exists(path + "/vocab.json") && path_exists(path + "/merges.txt")), io,
           "[tokenizer] {} has neither tokenizer.json nor vocab.json and merges.txt. One of them must be there. For a "
           "tokenizer.model write tokenizer.json in Python: "
           "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
           path);
  const Json config = object_in(path, "tokenizer_config.json");
  std::vector<const char*> unread = {"split_special_tokens"};
  if (!whole) unread.insert(unread.end(), {"add_bos_token", "add_eos_token"});  // else its post_processor has it
  for (const char* key : unread)
    if (const Json* x = config.find(key))
      TG_CHECK(*x != Json(true), value,
               "[tokenizer] {}/tokenizer_config.json sets {}, which changes ids and is not supported. {}", path, key,
               kWayOut);
  const std::string text = whole ? text_of_file(file) : "", source = whole ? file : path + "/merges.txt";
  Json json = whole ? parse_json(text, "tokenizer", file, detail::kTokenizerDepth) : json_of_vocab(path, config);
  const bool changed = json.is_object() && FolderSettings(path, config, json).enter();
  return BpeTokenizer::from_parsed(json, changed ? "" : text, source);
}

std::string tokenizer_json(const Tokenizer& tokenizer) {
  const Json own = own_json(tokenizer.to_json());
  const Json* type = own.find("type");
  if (own.contains("model")) return text_of(own);
  TG_CHECK(type && (*type == Json("bytes") || *type == Json("characters")), value,
           "[tokenizer] a tokenizer of another kind has no tokenizer.json. Only those of bytes, characters and "
           "BpeTokenizer have one.");
  Json vocabulary = Json::object();
  if (*type == Json("bytes")) {
    for (size_t byte = 0; byte < 256; ++byte) vocabulary[as_characters(std::string(1, char(uint8_t(byte))))] = byte;
    return text_of(byte_level_json(std::move(vocabulary), Json::array(), "", false));
  }
  std::string characters = own["characters"].get<std::string>();
  for (std::string_view rest = characters; !rest.empty();) {
    const size_t length = detail::first_of(rest).length;
    const size_t id = vocabulary.size();
    vocabulary[rest.substr(0, length)] = id;
    rest.remove_prefix(length);
  }
  Json all = byte_level_json(Json::object(), Json::array(), "", false);
  all["pre_tokenizer"] =
      Json{{"type", "Split"}, {"pattern", Json{{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}};
  all["decoder"] = Json{{"type", "Fuse"}};
  all["model"] = Json{{"type", "WordLevel"}, {"vocab", std::move(vocabulary)}, {"unk_token", "<unk>"}};
  return text_of(all);
}

}  // namespace tg
