#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/bpe_parts.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <charconv>

namespace tg {
namespace {
using detail::append_utf8;
using detail::kGpt2Pattern;

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The tokenizer.json of a byte-level vocabulary; an empty pattern does not cut.
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

// f(line, its number from 1 on) for each line that is not empty.
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
std::string as_characters(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) append_utf8(text, detail::byte_characters()[uint8_t(b)]);
  return text;
}
}  // namespace

BpeTokenizer BpeTokenizer::from_vocab(std::string_view vocab_json, std::string_view merges, const std::string& source) {
  Json list = Json::array();
  for_each_line(merges, [&](std::string_view line, size_t number) {
    if (number == 1 && line.starts_with("#version")) return;
    if (std::count(line.begin(), line.end(), ' ') != 1 || line.front() == ' ' || line.back() == ' ')
      fail_line(source, number, "a merge has two words.");
    list.push_back(line);
  });
  Json json = byte_level_json(parse_json(vocab_json, "tokenizer", source), std::move(list), kGpt2Pattern, false);
  constexpr const char* kEnd = "<|endoftext|>";
  if (const Json* id = json["model"]["vocab"].find(kEnd))
    json["added_tokens"].push_back(Json{{"id", *id},
                                        {"content", kEnd},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", true}});
  return from_json(text_of(json), source);
}

BpeTokenizer BpeTokenizer::from_ranks(std::string_view ranks, std::string_view pattern, const std::string& source) {
  const std::string_view patterns[][2] = {{"gpt2", kGpt2Pattern}, {"llama3", kLlama3Pattern}, {"qwen2", kQwen2Pattern}};
  const auto* const known =
      std::find_if(std::begin(patterns), std::end(patterns), [&](const auto& p) { return p[0] == pattern; });
  TG_CHECK(
      known != std::end(patterns), value,
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
  for (const auto& [rank, bytes] : tokens) {
    TG_CHECK(ids.emplace(as_characters(bytes), rank).second, value,
             "[tokenizer] {}: the token of rank {} comes twice. Restore the file.", source, rank);
    // A pair merges by the rank of what it makes, so each way to make it is a merge.
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string_view left = std::string_view(bytes).substr(0, cut), right = std::string_view(bytes).substr(cut);
      if (is_token(left) && is_token(right)) merges.push_back(Json::array({as_characters(left), as_characters(right)}));
    }
  }
  return from_json(text_of(byte_level_json(Json(ids), std::move(merges), (*known)[1], true)), source);
}

BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern) {
  const auto text_of_file = [](const std::string& file) { return std::string(MappedFile(file).text()); };
  if (!is_folder(path)) {
    if (path.ends_with(".tiktoken")) return BpeTokenizer::from_ranks(text_of_file(path), pattern, path);
    TG_CHECK(!path.ends_with(".model"), value,
             "[tokenizer] {} is a file of SentencePiece, which is not read. tokenizer.json is. Write it in Python: "
             "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
             path);
    return BpeTokenizer::from_json(text_of_file(path), path);
  }
  if (const std::string file = path + "/tokenizer.json"; path_exists(file))
    return BpeTokenizer::from_json(text_of_file(file), file);
  const std::string vocabulary = path + "/vocab.json", merges = path + "/merges.txt";
  TG_CHECK(path_exists(vocabulary) && path_exists(merges), io,
           "[tokenizer] {} has neither tokenizer.json nor vocab.json and merges.txt. One of them must be there. For a "
           "tokenizer.model write tokenizer.json in Python: "
           "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
           path);
  return BpeTokenizer::from_vocab(text_of_file(vocabulary), text_of_file(merges), merges);
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
