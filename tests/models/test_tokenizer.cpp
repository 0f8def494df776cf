// models/tokenizers/tokenizer.h: tokenizers of bytes and of characters, and their JSON.
#include "support/files.h"

#include <tapegrad/core/check.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <numeric>

namespace {
using namespace tg;
using namespace std::string_view_literals;
using Ids = std::vector<int64_t>;

template <class F> std::string value_error(F f) { return error_of(Error::Kind::value, f); }
}  // namespace

TEST_CASE("tokenizer: bytes") {
  const ByteTokenizer t;
  std::string every;
  for (int i = 0; i < 256; ++i) every += char(uint8_t(i));
  Ids ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  CHECK(t.encode(every) == ids);
  CHECK(t.decode(ids) == every);
  CHECK(t.vocab_size() == 256);
  CHECK(t.encode("").empty());
  CHECK_SAYS_OF(value, t.decode(Ids{65, 256}),
                "[tokenizer] id 256 at position 1 is not in the vocabulary. Ids must be in [0, 256).");
  CHECK_SAYS_OF(value, t.decode(Ids{-1}), "id -1 at position 0");
  CHECK(t.to_json() == R"({"type":"bytes"})");
}

TEST_CASE("tokenizer: characters are sorted, distinct code points") {
  // U+0062 U+0000 U+00E9 U+20AC U+1F600 U+0062, and the last code points of each length of UTF-8
  const std::string text(
      "b\0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
      "b\x7f\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf",
      22);
  const auto t = CharTokenizer::from_text(text);
  CHECK(t.vocab_size() == 9);
  CHECK(t.encode(text) == Ids{1, 0, 3, 5, 7, 1, 2, 4, 6, 8});
  CHECK(t.decode(t.encode(text)) == text);
  CHECK(t.encode("").empty());
  CHECK(t.decode({}).empty());
  CHECK_SAYS_OF(value, t.encode("b\xc3\xa9\xc3\xa4"),
                "[tokenizer] the character '\xc3\xa4' U+00E4 at byte 3 is not among the 9 of the model's vocabulary.");
  CHECK_SAYS_OF(value, t.encode("bb\n"), "the character U+000A at byte 2");
  CHECK_SAYS_OF(value, t.decode(Ids{0, 9}), "id 9 at position 1 is not in the vocabulary. Ids must be in [0, 9)");
  CHECK_SAYS_OF(value, t.decode(Ids{-1}), "id -1 at position 0");
  CHECK_SAYS_OF(value, CharTokenizer::from_text(""), "[tokenizer] the text is empty.");
}

TEST_CASE("tokenizer: the known part of a text") {
  const auto t = CharTokenizer::from_text("ab\xc3\xa9");
  const KnownText whole = t.known("b\xc3\xa9\xc3\xa9");
  CHECK(whole.text == "b\xc3\xa9\xc3\xa9");
  CHECK(whole.characters == 3);
  CHECK(whole.skipped == 0);
  CHECK(whole.first.empty());
  const KnownText part = t.known(
      "#a\r\xc3\xa4#\xc3\xa9\xf0\x9f\x98\x80"
      "b#");
  CHECK(part.text ==
        "a\xc3\xa9"
        "b");
  CHECK(part.characters == 9);
  CHECK(part.skipped == 6);
  CHECK(part.first == "'#' U+0023, U+000D, '\xc3\xa4' U+00E4, '\xf0\x9f\x98\x80' U+1F600");
  CHECK(t.decode(t.encode(part.text)) == part.text);
  CHECK(t.known("a12345").first == "'1' U+0031, '2' U+0032, '3' U+0033, '4' U+0034, '5' U+0035");
  CHECK(t.known("a1234567").first == "'1' U+0031, '2' U+0032, '3' U+0033, '4' U+0034, '5' U+0035, ...");
  CHECK(t.known("").text.empty());
  CHECK_HAS(
      value_error([&] { t.known("#?"); }),
      "[tokenizer] the text has no character of the model's vocabulary, which has 3: all 2 are unknown, the first "
      "of them '#' U+0023, '?' U+003F. Something must be left to encode.");
  CHECK_SAYS_OF(value, t.known("a\xff"), "byte 1 of the text, 0xff, is not valid UTF-8");
  CHECK_SAYS_OF(value, t.encode("a#"), "Leave it out, as --unknown skip and Tokenizer::known() do, or");
  const KnownText bytes = ByteTokenizer().known("#\xff");
  CHECK(bytes.text == "#\xff");
  CHECK(bytes.characters == 2);
  CHECK(bytes.skipped == 0);
}

TEST_CASE("tokenizer: text that is no UTF-8 is refused at its first wrong byte") {
  const auto t = CharTokenizer::from_text("ab");
  for (const std::string bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x9f\xbf", "\xe2\x82",
                                "\xe2(\xac", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98",
                                "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    const auto part = fmt::format("byte 2 of the text, {:#04x}, is not valid UTF-8.", uint8_t(bad[0]));
    CHECK_SAYS_OF(value, t.encode("ab" + bad + "a"), part);
    CHECK_SAYS_OF(value, CharTokenizer::from_text("ab" + bad), part, "use the byte tokenizer");
  }
}

TEST_CASE("tokenizer: JSON and back") {
  const std::string text = "\"\\\n hello \xe2\x82\xac\x01";
  const auto t = CharTokenizer::from_text(text);
  const auto copy = Tokenizer::from_json(t.to_json());
  CHECK(copy->vocab_size() == t.vocab_size());
  CHECK(copy->encode(text) == t.encode(text));
  CHECK(copy->decode(t.encode(text)) == text);
  CHECK(copy->to_json() == t.to_json());
  CHECK(Tokenizer::from_json(R"({"type":"characters","characters":"ab"})")->encode("ba") == Ids{1, 0});
  const auto bytes = Tokenizer::from_json(ByteTokenizer().to_json());
  CHECK(bytes->vocab_size() == 256);
  CHECK(bytes->decode(bytes->encode("\xff\x01")) == "\xff\x01");
  const auto error = [](const char* json) { return value_error([&] { Tokenizer::from_json(json); }); };
  CHECK_HAS(error(""), "[tokenizer] the tokenizer's JSON is not JSON: ");
  CHECK_HAS(error("{\"type\":"), "is not JSON");
  CHECK_HAS(error(R"({"type":"bytes","type":"bytes"})"), "'type' comes twice");
  CHECK_HAS(error(std::string(1'000'000, '[').c_str()), "nested too deeply");
  CHECK_HAS(error("[]"), "it is no JSON object");
  CHECK_HAS(error("{}"), "it has no string \"type\"");
  CHECK_HAS(error(R"({"type":1})"), "it has no string \"type\"");
  CHECK_HAS(error(R"({"type":"bpe"})"), "its type is \"bpe\", which is neither \"bytes\" nor \"characters\"");
  CHECK_HAS(error(R"({"type":"characters"})"), "it has no string \"characters\"");
  CHECK_HAS(error(R"({"type":"characters","characters":["a"]})"), "it has no string \"characters\"");
  CHECK_HAS(error(R"({"type":"characters","characters":""})"), "\"characters\" is empty");
  CHECK_HAS(error(R"({"type":"characters","characters":"ba"})"), "U+0061 at byte 1 of \"characters\" is not above");
  CHECK_HAS(error(R"({"type":"characters","characters":"aa"})"), "U+0061 at byte 1");
  CHECK_HAS(error(R"({"type":"characters","characters":"ab","merges":[]})"),
            "type \"characters\" has no field \"merges\"");
  CHECK_HAS(error(R"({"type":"bytes","characters":"ab"})"), "type \"bytes\" has no field \"characters\"");
}
