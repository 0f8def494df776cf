#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

namespace tg {
namespace detail {

static Json split_json(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", Json{{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}
Json byte_level_json(Json vocabulary, Json merges, std::string_view pattern, bool ignore_merges) {
  Json all = own_json(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false}})");
  if (!pattern.empty())
    all["pre_tokenizer"] =
        Json{{"type", "Sequence"}, {"pretokenizers", Json::array({split_json(pattern), all["decoder"]})}};
  Json& model = all["model"];
  model["ignore_merges"] = ignore_merges;
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
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

// Skips empty lines; numbers from 1.
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

int64_t number_of(std::string_view digits) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? number : -1;
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
    if (std::ranges::count(line, ' ') != 1 || line.front() == ' ' || line.back() == ' ')
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

// A file's JSON object, or an empty one.
Json object_in(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  if (!detail::path_exists(path)) return Json::object();
  Json json = detail::parse_json(MappedFile(path).text(), "tokenizer", path, 8);
  TG_CHECK(json.is_object(), value, "[tokenizer] {} is not an object. Restore the file.", path);
  return json;
}

// Python's truth value.
bool is_on(const Json& x) { return !x.is_blank() && x != Json(false) && x != Json(0); }

// A text or an object with "content".
std::string text_of_token(const Json& t) { return (t.is_object() ? t.member("content") : t).text(); }
template <class F> void each_special(const Json& config, F f) {
  std::vector<std::string> keys{"bos_token", "eos_token", "unk_token", "sep_token",
                                "pad_token", "cls_token", "mask_token"};
  for (const auto& [key, t] : config.items())
    if (key.ends_with("_token") && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  const bool extra = is_on(config.member("extra_special_tokens"));
  for (const char* key :
       {"model_specific_special_tokens", extra ? "extra_special_tokens" : "additional_special_tokens"})
    keys.emplace_back(key);
  for (const std::string& key : keys) {
    const Json& t = config.member(key);
    for (const Json& x : t) f(x);
    if (t.is_object() && !t.contains("content"))
      for (const auto& [name, x] : t.items()) f(x);
    else
      f(t);  // a list has no text
  }
}
// Tokens without an id get that of the vocabulary, or the next one.
void number_tokens(std::vector<Json>& tokens, const Json& tokenizer) {
  std::map<std::string, Json*> open;
  for (Json& t : tokens)
    if (t["id"].is_null()) open.emplace(text_of_token(t), &t);
  if (open.empty()) return;
  int64_t next = 0;
  const auto take = [&](const std::string& name, const Json& id) {
    if (!id.is_number_integer()) return;
    next = std::max(next, id.get<int64_t>() + 1);
    if (const auto found = open.find(name); found != open.end()) (*found->second)["id"] = id;
  };
  const Json& vocabulary = tokenizer.member("model").member("vocab");
  if (vocabulary.is_object())
    for (const auto& [name, id] : vocabulary.items()) take(name, id);
  for (const Json& t : tokenizer.member("added_tokens")) take("", t.member("id"));
  for (const Json& t : tokens) take("", t["id"]);
  for (Json& t : tokens)
    if (t["id"].is_null()) t["id"] = next++;
}

// Adds tokens of other files to tokenizer.json, like transformers. Returns whether there were any.
bool add_tokens(const std::string& folder, const Json& config, const Json& added, Json& tokenizer) {
  std::set<std::string> known, special;
  std::vector<Json> tokens;
  const auto add = [&](const Json& t, const Json& id) {
    const std::string text = text_of_token(t);
    if (text.empty() || !known.insert(text).second) return;
    Json all = added_token(text, id, special.contains(text));
    if (t.is_object())
      for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"})
        if (const Json* x = t.find(key)) all[key] = *x;
    tokens.push_back(std::move(all));
  };
  for (const Json& t : tokenizer.member("added_tokens"))
    if (t.is_object()) known.insert(text_of_token(t));
  each_special(config, [&](const Json& t) { special.insert(text_of_token(t)); });
  if (const Json& list = config.member("added_tokens_decoder"); list.is_object())
    for (const auto& [digits, t] : list.items()) {
      const int64_t id = number_of(digits);
      TG_CHECK(id >= 0, value,
               "[tokenizer] {}/tokenizer_config.json: added_tokens_decoder has the id \"{}\". It must be a number. "
               "Restore the file.",
               folder, digits);
      add(t, id);
    }
  for (const auto& [content, id] : added.items()) add(Json(content), id);
  each_special(config, [&](const Json& t) { add(t, nullptr); });
  number_tokens(tokens, tokenizer);
  for (Json& t : tokens)
    if (Json& list = tokenizer["added_tokens"]; list.is_array() || list.is_null()) list.push_back(std::move(t));
  return !tokens.empty();
}

// transformers 5's class, without "Fast".
std::string class_of(const std::string& folder, const Json& config) {
  const std::string file = folder + "/config.json";
  const Json model = detail::path_exists(file) ? detail::json_or_null(MappedFile(file).text()) : Json();
  const std::string type = model.member("model_type").text();
  std::string name = config.member("tokenizer_class").text();
  if (name.empty()) name = model.member("tokenizer_class").text();
  if (type == "qwen2" || (type == "qwen3" && name.empty())) return "Qwen2Tokenizer";
  if (type == "mistral") return "TokenizersBackend";
  if (name.empty()) return type == "gpt2" ? "GPT2Tokenizer" : "";
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}
Json steps_of(bool qwen, bool prefixed) {
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", prefixed}, {"trim_offsets", true}, {"use_regex", !qwen}};
  if (!qwen) return bytes;
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({detail::split_json(kQwen2Pattern), bytes})}};
}
// Applies a class's add_prefix_space instead of that in tokenizer.json. Returns whether they differed.
bool follow_prefix(const std::string& folder, const Json& config, Json& tokenizer) {
  const std::string type = class_of(folder, config);
  const std::string steps =
      detail::text_of(tokenizer.member("pre_tokenizer")) + detail::text_of(tokenizer.member("normalizer"));
  const auto has = [&](std::string_view part) { return steps.find(part) != steps.npos; };
  const Json& prefix = config.member("add_prefix_space");
  const bool bytes = has("\"ByteLevel\""), wanted = is_on(prefix), qwen = type == "Qwen2Tokenizer";
  const bool now =
      bytes ? !has("\"add_prefix_space\":false") : has("\"Prepend\"") || (has("\"Metaspace\"") && !has("\"never\""));
  TG_CHECK(type != "LlamaTokenizer" || bytes || prefix.is_null() || now == wanted, value,
           "[tokenizer] {}/tokenizer_config.json sets add_prefix_space to {}, and tokenizer.json does the opposite. {}",
           folder, wanted, kWayOut);
  if ((!qwen && type != "GPT2Tokenizer") || now == wanted) return false;
  tokenizer["pre_tokenizer"] = steps_of(qwen, wanted);
  return true;
}

// tokenizer.json for vocab.json and merges.txt, by class.
Json json_of_vocab(const std::string& folder, const Json& config) {
  std::string type = class_of(folder, config);
  if (type.empty()) type = "GPT2Tokenizer";
  const bool qwen = type == "Qwen2Tokenizer", prefixed = is_on(config.member("add_prefix_space"));
  TG_CHECK(qwen || type == "GPT2Tokenizer", value,
           "[tokenizer] {}/tokenizer_config.json names the class {}, and vocab.json with merges.txt is supported for "
           "GPT2Tokenizer and Qwen2Tokenizer only. {}",
           folder, type, kWayOut);
  const std::string vocabulary = folder + "/vocab.json", merges = folder + "/merges.txt";
  Json json = json_of_vocab(detail::parse_json(MappedFile(vocabulary).text(), "tokenizer", vocabulary),
                            merges_of(MappedFile(merges).text(), merges), qwen ? kQwen2Pattern : kGpt2Pattern);
  if (qwen) json["normalizer"] = Json{{"type", "NFC"}};
  if (prefixed) json["pre_tokenizer"] = steps_of(qwen, true);
  return json;
}
}  // namespace

BpeTokenizer BpeTokenizer::from_vocab(std::string_view vocab_json, std::string_view merges, const std::string& source) {
  return from_parsed(
      json_of_vocab(detail::parse_json(vocab_json, "tokenizer", source), merges_of(merges, source), kGpt2Pattern), "",
      source);
}

BpeTokenizer BpeTokenizer::from_ranks(std::string_view ranks, std::string_view pattern, const std::string& source) {
  const std::string_view splits = detail::pattern_named(pattern);
  TG_CHECK(!splits.empty(), value,
           "[tokenizer] {} holds ranks, which need a pattern, and \"{}\" is none. It must be gpt2, llama3 or qwen2. "
           "Name that of the model.",
           source, pattern);
  std::vector<std::pair<int64_t, std::string>> tokens;
  for_each_line(ranks, [&](std::string_view line, size_t number) {
    const size_t space = line.find(' ');
    const std::string_view digits = space < line.size() ? line.substr(space + 1) : "";
    const int64_t rank = number_of(digits);
    if (rank < 0) fail_line(source, number, "it must be a token in base64 and its rank.");
    tokens.emplace_back(rank, from_base64(line.substr(0, space), source, number));
  });
  std::ranges::sort(tokens);
  std::unordered_set<std::string_view> known;
  for (const auto& [rank, bytes] : tokens) known.insert(bytes);
  Json merges = Json::array();
  std::map<std::string, int64_t> ids;
  constexpr size_t kLongest = 1024;
  size_t room = 64 * ranks.size() + (1 << 20);  // room for merges' texts
  for (const auto& [rank, bytes] : tokens) {
    TG_CHECK(ids.emplace(as_characters(bytes), rank).second, value,
             "[tokenizer] {}: the token of rank {} comes twice. Restore the file.", source, rank);
    TG_CHECK(bytes.size() <= kLongest, value,
             "[tokenizer] {}: the token of rank {} has {} bytes, and may have {}. Take another tokenizer.", source,
             rank, bytes.size(), kLongest);
    // tiktoken ranks merged tokens: every split in two is a merge rule.
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string_view left = std::string_view(bytes).substr(0, cut), right = std::string_view(bytes).substr(cut);
      if (!known.contains(left) || !known.contains(right)) continue;
      TG_CHECK(bytes.size() <= room, value,
               "[tokenizer] {}: its tokens can be cut into tokens in too many ways, {} times what the file has. Take "
               "another tokenizer.",
               source, 64);
      room -= bytes.size();
      merges.push_back(Json::array({as_characters(left), as_characters(right)}));
    }
  }
  return from_json(detail::text_of(byte_level_json(Json(ids), std::move(merges), splits, true)), source);
}

// Advice: the right path, if this is another tokenizer file.
static std::string way_out_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (detail::path_exists(folder + "/tokenizer.json")) return fmt::format("Pass {0} or {0}/tokenizer.json.", folder);
  return detail::path_exists(folder + "/merges.txt") ? fmt::format("Pass {}.", folder) : kWayOut;
}

BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern) {
  const auto text_of_file = [](const std::string& file) { return std::string(MappedFile(file).text()); };
  if (!detail::is_folder(path)) {
    if (path.ends_with(".tiktoken")) return BpeTokenizer::from_ranks(text_of_file(path), pattern, path);
    const bool is_json = !path.ends_with(".model") && !path.ends_with("merges.txt");
    const std::string text = detail::is_gguf(path) ? *detail::text_in(path, "tokenizer.json")
                             : is_json             ? text_of_file(path)
                                                   : "";
    const Json json = is_json ? detail::parse_json(text, "tokenizer", path, detail::kTokenizerDepth) : Json();
    TG_CHECK(json.member("model").is_object(), value, "[tokenizer] {} is no tokenizer.json, which has a \"model\". {}",
             path, way_out_of(path));
    return BpeTokenizer::from_parsed(json, text, path);
  }
  const std::string file = path + "/tokenizer.json";
  const bool whole = detail::path_exists(file);
  TG_CHECK(whole || (detail::path_exists(path + "/vocab.json") && detail::path_exists(path + "/merges.txt")), io,
           "[tokenizer] {} has neither tokenizer.json nor vocab.json and merges.txt. One of them must be there. For a "
           "tokenizer.model write tokenizer.json in Python: "
           "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
           path);
  Json config = object_in(path, "tokenizer_config.json"), added = Json::object();
  if (!config.contains("added_tokens_decoder")) {  // otherwise transformers 5 ignores the other two files
    added = object_in(path, "added_tokens.json");
    const Json map = object_in(path, "special_tokens_map.json");
    for (const auto& [key, x] : map.items())
      if (key != "added_tokens_decoder") config[key] = x;
    if (map.contains("extra_special_tokens")) config.erase("additional_special_tokens");
  }
  std::vector<const char*> unread = {"split_special_tokens",
                                     "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"};
  if (!whole)
    unread.insert(unread.end(), {"add_bos_token", "add_eos_token", "vocab", "merges"});  // otherwise the file has them
  for (const char* key : unread)
    TG_CHECK(!is_on(config.member(key)), value,
             "[tokenizer] {}/tokenizer_config.json sets {}, which changes ids or texts and is not supported. {}", path,
             key, kWayOut);
  const std::string text = whole ? text_of_file(file) : "", source = whole ? file : path + "/merges.txt";
  Json json =
      whole ? detail::parse_json(text, "tokenizer", file, detail::kTokenizerDepth) : json_of_vocab(path, config);
  const bool prefixed = whole && json.is_object() && follow_prefix(path, config, json);
  const bool changed = json.is_object() && (add_tokens(path, config, added, json) || prefixed);
  return BpeTokenizer::from_parsed(json, changed ? "" : text, source);
}

std::string tokenizer_json(const Tokenizer& tokenizer) {
  const Json own = detail::own_json(tokenizer.to_json());
  const Json* type = own.find("type");
  if (own.contains("model")) return detail::text_of(own);
  TG_CHECK(type && (*type == Json("bytes") || *type == Json("characters")), value,
           "[tokenizer] a tokenizer of another kind has no tokenizer.json. Only those of bytes, characters and "
           "BpeTokenizer have one.");
  Json vocabulary = Json::object();
  if (*type == Json("bytes")) {
    for (size_t byte = 0; byte < 256; ++byte) vocabulary[as_characters(std::string(1, char(uint8_t(byte))))] = byte;
    return detail::text_of(byte_level_json(std::move(vocabulary), Json::array(), "", false));
  }
  std::string characters = own["characters"].get<std::string>();
  for (std::string_view rest = characters; !rest.empty();) {
    const size_t length = detail::first_of(rest).length;
    const size_t id = vocabulary.size();
    vocabulary[rest.substr(0, length)] = id;
    rest.remove_prefix(length);
  }
  Json all = byte_level_json(Json::object(), Json::array(), "", false);
  all["pre_tokenizer"] = detail::split_json("[\\s\\S]");
  all["decoder"] = Json{{"type", "Fuse"}};
  all["model"] = Json{{"type", "WordLevel"}, {"vocab", std::move(vocabulary)}, {"unk_token", "<unk>"}};
  return detail::text_of(all);
}

}  // namespace tg
