// Each tokenizer reader limits memory and time to linear. Published tokenizers are far below the limits.
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>

#include "support/effort.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

namespace {
Json bytes_json() { return detail::own_json(tokenizer_json(ByteTokenizer())); }
BpeTokenizer of(const Json& json) { return BpeTokenizer::from_json(detail::text_of(json), "t.json"); }
std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string to;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t x = 0;
    for (size_t k = 0; k < 3; ++k) x = x << 8 | (i + k < bytes.size() ? uint8_t(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) to += i + k <= bytes.size() ? kDigits[x >> (18 - 6 * k) & 63] : '=';
  }
  return to;
}
Json replace(const char* to) { return Json{{"type", "Replace"}, {"pattern", Json{{"String", "a"}}}, {"content", to}}; }
Json sequence(const char* list, const Json& step, size_t n) {
  Json all = Json::array();
  for (size_t i = 0; i < n; ++i) all.push_back(step);
  Json s{{"type", "Sequence"}};
  s[list] = std::move(all);
  return s;
}
}  // namespace

TEST_CASE("tokenizer limits: steps, and what they make of a text or token") {
  const Json split{{"type", "Split"}, {"pattern", Json{{"String", "z"}}}, {"behavior", "Removed"}};
  for (const auto& [key, list, step] : {std::tuple("pre_tokenizer", "pretokenizers", split),
                                        {"normalizer", "normalizers", replace("a")},
                                        {"decoder", "decoders", replace("a")}}) {
    Json json = bytes_json();
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = Json{{"type", "Fuse"}};
    json[key] = sequence(list, step, 64);
    CHECK(of(json).encode("aaaa").size() == 4);
    json[key] = sequence(list, step, 65);
    CHECK_SAYS(of(json), fmt::format("{}.{}[64] is step 65, and there may be 64", key, list));
  }
  Json json = bytes_json();
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = sequence("decoders", replace("aa"), 40);
  CHECK_SAYS(of(json), "of a text or token, and may make 4112");
  json = bytes_json();
  json["normalizer"] = sequence("normalizers", replace("aa"), 40);
  CHECK_SAYS(of(json).encode("aaaa"), "and may make 4160");
  json["normalizer"] = replace(std::string(5000, 'b').c_str());
  CHECK_SAYS(of(json).encode(std::string(1000, 'a')), "and may make 20096");
  json["added_tokens"] = Json::array({Json{{"id", 300}, {"content", "aaaa"}, {"normalized", true}}});
  CHECK_SAYS(of(json), "and may make 4160");
  json["added_tokens"] = Json::array();
  json["normalizer"] = Json{{"type", "Prepend"}, {"prepend", std::string(5000, 'b')}};
  CHECK_SAYS(of(json).encode("a"), "its steps make 5001 bytes of a text or token, and may make 4112");
  json["normalizer"] = nullptr;
  json["decoder"] = Json{{"type", "Fuse"}};
  json["pre_tokenizer"] = Json{{"type", "Metaspace"}, {"replacement", std::string(5000, 'b')}};
  CHECK_SAYS(of(json).encode("a a"), "and may make 4144, 16 times its size");
  json = bytes_json();
  json["normalizer"] = replace("\xe2\x96\x81");
  CHECK(of(json).encode(std::string(3000, 'a')).size() > 0);  // published tokenizers have this rule
}

TEST_CASE("tokenizer limits: patterns that try the same text again and again") {
  for (const char* pattern : {R"(a+b|a)", R"((?:a+)(?=b)|a)", R"(a*b|a*c|a)", R"(a{0,999}b|a)"}) {
    Json json = bytes_json();
    json["pre_tokenizer"] = Json{{"type", "Split"}, {"pattern", Json{{"Regex", pattern}}}, {"behavior", "Isolated"}};
    json["decoder"] = Json{{"type", "Fuse"}};
    CHECK_SAYS(of(json).encode(std::string(100'000, 'a')), "takes too many steps");
  }
  // Long runs, with the published patterns.
  std::string ranks;
  for (int b = 0; b < 256; ++b) ranks += fmt::format("{} {}\n", base64(std::string(1, char(b))), b);
  for (const char* pattern : {"gpt2", "llama3", "qwen2"}) {
    const BpeTokenizer t = BpeTokenizer::from_ranks(ranks, pattern, "r");
    for (const std::string piece :
         {" ",  "\n",       "\t",           "a",        "1",    ".",  "'",  "\r\n",   " \n", "\n ", " a", "a ", "' ",
          " 1", "\xc2\xa0", "\xe4\xb8\xad", "\xcc\x81", "\xff", " .", "'s", "\t\t\n", "  x"}) {
      std::string text;
      while (text.size() < 60'000) text += piece;
      CHECK(t.encode(text).size() == text.size());
      CHECK(t.encode("x" + text + "x").size() == text.size() + 2);
    }
  }
}

TEST_CASE("tokenizer limits: tiktoken ranks whose tokens can be cut in many ways, and long ones") {
  std::string ranks;
  for (size_t n = 1; n <= 700; ++n) ranks += fmt::format("{} {}\n", base64(std::string(n, 'a')), n - 1);
  CHECK_SAYS(BpeTokenizer::from_ranks(ranks, "gpt2", "r"), "can be cut into tokens in too many ways");
  ranks = fmt::format("{} 0\n{} 1\n", base64("a"), base64(std::string(1025, 'a')));
  CHECK_SAYS(BpeTokenizer::from_ranks(ranks, "gpt2", "r"), "the token of rank 1 has 1025 bytes");
}

TEST_CASE("added tokens: the longest at each place, as by trying all; many that begin alike") {
  Rng rng{7};
  for (int round = 0; round < 200 * test_effort(); ++round) {
    const auto word = [&](uint64_t most) {
      std::string s;
      for (uint64_t n = 1 + rng.below(most); n > 0; --n) s += "<ab"[rng.below(3)];
      return s;
    };
    std::vector<detail::AddedToken> tokens;
    for (int i = 0; i < 12; ++i) {
      std::string s = word(5);
      if (std::ranges::any_of(tokens, [&](const auto& t) { return t.content == s; })) continue;
      tokens.push_back({.content = s, .id = i});
    }
    const std::string text = word(40);
    std::vector<std::pair<size_t, int32_t>> want, got;
    for (size_t at = 0; at < text.size();) {
      const detail::AddedToken* best = nullptr;
      for (const auto& t : tokens)
        if (text.substr(at).starts_with(t.content) && (!best || t.content.size() > best->content.size())) best = &t;
      if (best) want.emplace_back(at, best->id);
      at += best ? best->content.size() : 1;
    }
    detail::AddedTokens(tokens).find(text, true, [&](size_t begin, size_t, const detail::AddedToken* t) {
      if (t) got.emplace_back(begin, t->id);
    });
    CHECK(got == want);
  }
  std::vector<detail::AddedToken> many;
  for (int i = 0; i < 100'000; ++i) many.push_back({.content = fmt::format("<{:06}", i), .id = i});
  many.push_back({.content = "<<<", .id = 100'000});
  size_t found = 0;
  detail::AddedTokens(many).find(std::string(300'000, '<'), true,
                                 [&](size_t, size_t, const detail::AddedToken* t) { found += t != nullptr; });
  CHECK(found == 100'000);
}
