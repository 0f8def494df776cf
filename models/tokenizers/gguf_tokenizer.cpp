#include <tapegrad/core/check.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <unordered_set>

namespace tg::detail {
namespace {

struct PreTokenizer {
  std::string_view name, pattern = "";
  bool begins = false, whole_first = false, digits = false, nfc = false;
};
// tokenizer.ggml.pre. By default llama.cpp adds a first token where `begins`.
constexpr PreTokenizer kPreTokenizers[] = {{.name = "gpt-2", .pattern = kGpt2Pattern},
                                           {"llama-bpe", kLlama3Pattern, true, true},
                                           {.name = "qwen2", .pattern = kQwen2Pattern, .nfc = true},
                                           {.name = "deepseek-r1-qwen", .pattern = kQwen2Pattern, .nfc = true},
                                           {.name = "smollm", .digits = true}};

struct Vocabulary {
  // Types of tokens.
  static constexpr double kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kUnused = 5;
  const GgufFile& file;
  bool scores = model() == "llama";
  std::vector<std::string> tokens =
      file.get<std::vector<std::string>>(key("tokens")).value_or(std::vector<std::string>());
  std::vector<double> types =
      file.get<std::vector<double>>(key("token_type")).value_or(std::vector(tokens.size(), kNormal));

  static std::string key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }
  std::string model() const { return file.get<std::string>(key("model")).value_or(""); }
  bool is(size_t id, double type) const { return id < types.size() && types[id] == type; }
  int64_t id(const std::string& kind, int64_t otherwise = -1) const {  // or -1
    const int64_t id = file.get<int64_t>(key(kind + "_token_id")).value_or(scores ? otherwise : -1);
    return id < int64_t(tokens.size()) ? id : -1;
  }
  int64_t begin() const { return id("bos", 1); }
  int64_t end() const { return id("eos", 2); }
  bool adds(const char* flag, bool otherwise) const { return file.get<bool>(key(flag)).value_or(otherwise); }
  bool has_prefix() const { return adds("add_space_prefix", true); }
  // As in llama.cpp, which looks for these names as well.
  std::vector<int64_t> ends() const {
    std::vector<int64_t> all{end(), id("eot"), id("eom")};
    for (size_t i = 0; i < tokens.size(); ++i)
      if (const auto& t = tokens[i]; is(i, kControl) && (t == "<|eot_id|>" || t == "<|im_end|>" || t == "<|end|>"))
        all.push_back(int64_t(i));
    std::vector<int64_t> distinct;
    for (const int64_t id : all)
      if (id >= 0 && std::ranges::find(distinct, id) == distinct.end()) distinct.push_back(id);
    return distinct;
  }

  const PreTokenizer& check() const {
    TG_CHECK(!model().empty() && !tokens.empty(), value, "[gguf] {} has no tokenizer. Ids of tokens still work.",
             file.path());
    TG_CHECK(scores || model() == "gpt2", value,
             "[gguf] {} has the tokenizer \"{}\", and gpt2 and llama are read. Ids of tokens still work.", file.path(),
             model());
    TG_CHECK(types.size() == tokens.size(), value, "[gguf] {} has {} tokens and {} types of them. Download it anew.",
             file.path(), tokens.size(), types.size());
    for (size_t i = 0; i < tokens.size(); ++i)
      TG_CHECK(valid_end(tokens[i], 0, tokens[i].size()) == tokens[i].size(), value,
               "[gguf] {}: the token {} is not UTF-8. Download it anew.", file.path(), i);
    const std::string name = scores ? "gpt-2" : file.get<std::string>(key("pre")).value_or("default");
    const auto* const pre = std::ranges::find(kPreTokenizers, name, &PreTokenizer::name);
    TG_CHECK(pre != std::end(kPreTokenizers), value,
             "[gguf] {} splits texts as \"{}\" (tokenizer.ggml.pre), and gpt-2, llama-bpe, qwen2, deepseek-r1-qwen and "
             "smollm are read. Ids of tokens still work.",
             file.path(), name);
    return *pre;
  }
  Json vocabulary() const {
    std::map<std::string, int64_t> all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (is(i, kUnused) || tokens[i] == fmt::format("[PAD{}]", i)) continue;
      const auto [at, is_new] = all.emplace(tokens[i], int64_t(i));
      TG_CHECK(is_new, value, "[gguf] {}: the tokens {} and {} are both '{}'. Download it anew.", file.path(),
               at->second, i, tokens[i]);
    }
    return all;
  }
  Json listed_merges() const {
    const auto list = file.get<std::vector<std::string>>(key("merges"));
    TG_CHECK(list, value, "[gguf] {} has no '{}'. Download it anew.", file.path(), key("merges"));
    Json all = Json::array();
    for (const std::string& m : *list) {
      const size_t space = m.find(' ', 1);
      TG_CHECK(space != m.npos, value, "[gguf] {}: the merge '{}' is not two tokens. Download it anew.", file.path(),
               m);
      all.push_back(Json::array({m.substr(0, space), m.substr(space + 1)}));
    }
    return all;
  }
  // SentencePiece joins the adjacent tokens that make the one with the best score: each split of a token is a merge.
  Json merges_of_scores() const {
    constexpr size_t kMostBytes = 512;
    const std::vector<double> score = file.get<std::vector<double>>(key("scores")).value_or(std::vector<double>());
    TG_CHECK(score.size() == tokens.size() && std::ranges::all_of(score, [](double x) { return std::isfinite(x); }),
             value, "[gguf] {} has {} tokens and {} scores of them. Each must have one, which is finite.", file.path(),
             tokens.size(), score.size());
    std::vector<size_t> ids;
    std::unordered_set<std::string_view> normal;
    for (size_t i = 0; i < tokens.size(); ++i)
      if (is(i, kNormal)) ids.push_back(i), normal.insert(tokens[i]);
    std::ranges::stable_sort(ids, std::greater<>(), [&](size_t i) { return score[i]; });
    Json all = Json::array();
    for (const size_t i : ids) {
      const std::string_view t = tokens[i];
      TG_CHECK(t.size() <= kMostBytes && all.size() <= MergeTable::kMost, value,
               "[gguf] {}: the token {} has {} bytes, after {} merges. There may be {} of {}.", file.path(), i,
               t.size(), all.size(), kMostBytes, MergeTable::kMost);
      for (size_t n = t.size(); n-- > 1;)
        if (normal.contains(t.substr(0, n)) && normal.contains(t.substr(n)))
          all.push_back(Json::array({t.substr(0, n), t.substr(n)}));
    }
    return all;
  }
  void set_pieces(Json& all) const {
    const std::string prepend = has_prefix() ? R"({"type": "Prepend", "prepend": "▁"}, )" : "",
                      strip = has_prefix() ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "";
    all["normalizer"] = own_json(R"({"type": "Sequence", "normalizers": [)" + prepend +
                                 R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
    all["decoder"] = own_json(R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"},
        "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})" +
                              strip + "]}");
    all["pre_tokenizer"] = Json();
    const int64_t unknown = id("unknown", 0);
    all["model"]["unk_token"] = unknown < 0 ? Json() : Json(tokens[size_t(unknown)]);
    all["model"]["fuse_unk"] = all["model"]["byte_fallback"] = true;
  }
  std::string tokenizer_json() const {
    const PreTokenizer& pre = check();
    Json all =
        byte_level_json(vocabulary(), scores ? merges_of_scores() : listed_merges(), pre.pattern, pre.whole_first);
    if (pre.nfc) all["normalizer"] = Json{{"type", "NFC"}};
    if (pre.digits)
      all["pre_tokenizer"] = own_json(R"({"type": "Sequence", "pretokenizers": [
          {"type": "Digits", "individual_digits": true},
          {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})");
    if (scores) set_pieces(all);
    for (size_t i = 0; i < tokens.size(); ++i)
      if (is(i, kControl) || is(i, kUser) || (scores && is(i, kUnknown))) {
        Json token = added_token(tokens[i], i, !is(i, kUser));
        token["normalized"] = false;
        all["added_tokens"].push_back(token);
      }
    Json single = Json::array({Json{{"Sequence", Json{{"id", "A"}, {"type_id", 0}}}}}), special = Json::object();
    const auto added = [&](const char* flag, bool otherwise, int64_t id) {
      if (!adds(flag, otherwise)) return Json();
      TG_CHECK(id >= 0, value, "[gguf] {} sets {}, and has no such token. Download it anew.", file.path(), key(flag));
      const std::string& name = tokens[size_t(id)];
      special[name] = Json{{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
      return Json{{"SpecialToken", Json{{"id", name}, {"type_id", 0}}}};
    };
    const Json first = added("add_bos_token", scores || pre.begins, begin()),
               last = added("add_eos_token", false, end());
    const Json both = Json::array({single[0], Json{{"Sequence", Json{{"id", "B"}, {"type_id", 1}}}}});
    if (!first.is_null()) single = Json::array({first, single[0]});
    if (!last.is_null()) single.push_back(last);
    if (!special.empty())
      all["post_processor"] =
          Json{{"type", "TemplateProcessing"}, {"single", single}, {"pair", both}, {"special_tokens", special}};
    return text_of(all);
  }
  std::string tokenizer_config() const {
    Json all{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [name, id] : {std::pair("bos_token", begin()),
                                   {"eos_token", end()},
                                   {"pad_token", id("padding")},
                                   {"unk_token", id("unknown", 0)}})
      if (id >= 0) all[name] = tokens[size_t(id)];
    return text_of(all, 2) + "\n";
  }
  std::string generation_config() const {
    Json all{{"eos_token_id", ends()}};
    if (begin() >= 0) all["bos_token_id"] = begin();
    return text_of(all, 2) + "\n";
  }
};

}  // namespace

std::optional<std::string> text_in(const std::string& model, std::string_view name) {
  if (model.empty()) return {};
  if (!is_gguf(model)) {
    const std::string path = fmt::format("{}/{}", model, name);
    return path_exists(path) ? std::optional(std::string(MappedFile(path).text())) : std::nullopt;
  }
  const GgufFile file(model);
  if (name == "chat_template.jinja") return file.get<std::string>("tokenizer.chat_template");
  const Vocabulary v{file};
  if (name == "tokenizer.json") return v.tokenizer_json();
  if (name == "tokenizer_config.json") return v.tokenizer_config();
  return name == "generation_config.json" ? std::optional(v.generation_config()) : std::nullopt;
}

Json json_in(const std::string& model, std::string_view name, std::string_view op) {
  const auto text = text_in(model, name);
  return text ? parse_json(*text, op, fmt::format("{}/{}", model, name), 64) : Json();
}

}  // namespace tg::detail
