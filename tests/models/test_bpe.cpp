// models/tokenizers/bpe.h against Hugging Face's tokenizers and tiktoken (tests/data/make_tokenizers.py), round trips,
// refusals.
#include "support/files.h"
#include "support/helpers.h"
#include "support/threads.h"

#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/tapegrad.h>

namespace {
using namespace tg;
using Ids = std::vector<int64_t>;

const Json& fixture() {
  static const Json json = detail::own_json(read_file(TG_TEST_DATA "/tokenizers.json"));
  return json;
}
Json json_of(std::string_view name) {
  for (const Json& c : fixture()["cases"])
    if (c["name"].get<std::string>() == name) return c["tokenizer"];
  FAIL("no case " << std::string(name));
  return {};
}
BpeTokenizer of(const Json& json) { return BpeTokenizer::from_json(detail::text_of(json), "t.json"); }
std::string bpe_refusal(const Json& json) {
  return error_of(Error::Kind::value, [&] { of(json); });
}
// Peers write invalid UTF-8 as U+FFFD: such texts are not compared.
bool is_whole(const std::string& text) { return text.find("\xef\xbf\xbd") == std::string::npos; }

std::string any_bytes(Rng& rng, size_t n) {
  std::string text;
  constexpr std::string_view kLikely = " \n'ab1\xc3\xa9\xe4\xb8\xad";
  while (text.size() < n) {
    const uint64_t x = rng.below(uint64_t(1) << 40);
    text += x % 2 ? char(uint8_t(x >> 8)) : kLikely[(x >> 8) % kLikely.size()];
  }
  return text;
}
constexpr const char* kTiny = R"({"added_tokens": [{"id": 5, "content": "<e>", "special": true}], "normalizer": null,
  "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+|b"}, "behavior": "Isolated"}, "post_processor": null,
  "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2, "aaa": 4}, "merges": ["a a", ["aa", "a"]]}})";
Json tiny_bpe() { return detail::own_json(kTiny); }
}  // namespace

TEST_CASE("bpe: ids and texts of tokenizers") {
  const auto texts = fixture()["texts"].get<std::vector<std::string>>();
  for (const Json& c : fixture()["cases"]) {
    const std::string name = c["name"].get<std::string>();
    CAPTURE(name);
    const BpeTokenizer t = of(c["tokenizer"]);
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      CHECK(t.encode(texts[i]) == c["plain"][i].get<Ids>());
      const Ids parsed = t.encode(texts[i], {.parse_special = true, .add_special = true});
      CHECK(parsed == c["parsed"][i].get<Ids>());
      const auto decoded = c["decoded"][i].get<std::string>();
      if (is_whole(decoded)) CHECK(t.decode(parsed) == decoded);
    }
  }
}

TEST_CASE("bpe: ids of tiktoken from its ranks") {
  const auto texts = fixture()["texts"].get<std::vector<std::string>>();
  const Json& ranks = fixture()["ranks"];
  const auto t = BpeTokenizer::from_ranks(ranks["file"].get<std::string>(), "llama3", "r.tiktoken");
  for (size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(texts[i]);
    CHECK(t.encode(texts[i]) == ranks["plain"][i].get<Ids>());
  }
}

TEST_CASE("bpe: byte-level tokenizers give back any bytes, whole and in a stream") {
  Rng rng{.seed = 7};
  for (const char* name : {"gpt2", "llama3", "fallback"}) {
    const BpeTokenizer t = of(json_of(name));
    for (int i = 0; i < 300; ++i) {
      const std::string text = any_bytes(rng, size_t(i % 90));
      const Ids ids = t.encode(text);
      CHECK(t.decode(ids) == text);
      TextStream stream(t, true);
      std::string streamed;
      for (const int64_t id : ids) streamed += stream.add(id);
      CHECK(streamed + stream.end() == text);
    }
  }
}

TEST_CASE("bpe: a stream gives whole characters, and no space is lost after a prompt") {
  const BpeTokenizer t = of(json_of("gpt2"));
  TextStream stream(t);
  const Ids ids = t.encode("\U0001F600");
  REQUIRE(ids.size() == 4);
  for (size_t i = 0; i < 3; ++i) CHECK(stream.add(ids[i]).empty());
  CHECK(stream.add(ids[3]) == "\U0001F600");
  CHECK(stream.add(ids[0]).empty());
  CHECK(stream.end() == "\xf0");
  const BpeTokenizer spaced = of(json_of("fallback"));
  const int64_t word = spaced.id_of("\u2581the");
  REQUIRE(word >= 0);
  CHECK(TextStream(spaced).add(word) == " the");
  CHECK(TextStream(spaced, true).add(word) == "the");
  CHECK(spaced.decode(Ids{word, word}) == "the the");
}

TEST_CASE("StopStrings: the stop that is complete first ends the text, however the text is cut") {
  const auto read = [](std::vector<std::string> stops, const std::vector<std::string>& pieces) {
    StopStrings s(std::move(stops));
    std::string all;
    for (const std::string& piece : pieces) {
      all += s.add(piece);
      all += s.found() ? "|" : ".";
    }
    return all + s.end();
  };
  CHECK(read({"\n\n"}, {"a\n", "b\n", "\nc", "d"}) == "a.\nb.||");
  CHECK(read({"abcd", "bc"}, {"xab", "cd"}) == "x.a|");
  CHECK(read({"bc", "abc"}, {"xab", "cd"}) == "x.|");
  CHECK(read({"aab"}, {"aaa", "a"}) == "a.a.aa");
  CHECK(read({"aab"}, {"aaa", "b"}) == "a.|");
  CHECK(read({"\xA9"}, {"caf\xC3", "\xA9 x"}) == "caf\xC3.|");  // split character
  CHECK(read({"é"}, {"caf\xC3", "\xA9 x"}) == "caf.|");
  CHECK(read({}, {"a", "", "b"}) == "a..b.");
  CHECK_SAYS(StopStrings({"x", ""}), "stop 1 is empty");

  Rng rng{4};
  const auto word = [&](uint64_t most) {
    std::string s(1 + rng.below(most), 'a');
    for (char& c : s) c = char('a' + rng.below(2));
    return s;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops{word(5), word(5), word(5)};
    const std::string text = word(20);
    size_t end = text.size(), begin = end;  // range of the stop
    bool found = false;
    for (size_t e = 1; e <= text.size() && !found; ++e)
      for (const std::string& s : stops)
        if (std::string_view(text).substr(0, e).ends_with(s))
          begin = std::min(found ? begin : e, e - s.size()), end = e, found = true;
    StopStrings s(stops);
    std::string got;
    for (size_t at = 0; at < text.size() && !s.found();) {
      const size_t n = 1 + rng.below(4);
      got += s.add(text.substr(at, n));
      at = std::min(text.size(), at + n);
      if (s.found()) break;
      // The held text is the longest beginning of a stop.
      size_t most = 0;
      for (const std::string& stop : stops)
        for (size_t k = 1; k < stop.size(); ++k)
          if (std::string_view(text).substr(0, at).ends_with(std::string_view(stop).substr(0, k)))
            most = std::max(most, k);
      REQUIRE(got.size() == at - most);
    }
    CAPTURE(text);
    REQUIRE(s.found() == found);
    got += s.end();
    REQUIRE(got == text.substr(0, found ? begin : end));
  }
}

TEST_CASE("bpe: long pieces are joined as short ones are") {
  const BpeTokenizer t = of(json_of("fallback"));
  const std::string word = "and the runtime has tests, of the kernels and the models;";
  std::string text;
  while (text.size() < 100'000) text += word;
  // One chunk: merges cross a seam only where tokens do.
  const Ids whole = t.encode(text);
  CHECK(t.decode(whole) == text);
  const Json tiny_json = tiny_bpe();
  const BpeTokenizer few = of(tiny_json);
  for (size_t n : {1, 2, 3, 4, 5, 30, 31, 32, 33, 34, 1000}) {  // pairs from the left, then threes
    const Ids ids = few.encode(std::string(n, 'a'));
    Ids expected(n / 2, 2);
    if (n % 2 == 1) n == 1 ? expected.push_back(0) : void(expected.back() = 4);
    CHECK(ids == expected);
  }
}

TEST_CASE("bpe: a text that nothing cuts has the ids that it has when it is joined whole") {
  Rng rng{.seed = 6};
  for (const char* name : {"fallback", "gpt2"}) {
    CAPTURE(name);
    Json parts = json_of(name), whole = parts;
    if (name == std::string_view("gpt2"))
      for (Json* json : {&parts, &whole})
        (*json)["pre_tokenizer"] = Json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    // A fused unknown character and a token of bytes both keep texts whole.
    if (name == std::string_view("gpt2"))
      whole["model"]["fuse_unk"] = true;
    else
      whole["model"]["vocab"]["<0x00><0x00>"] = whole["model"]["vocab"].size();
    const BpeTokenizer a = of(parts), b = of(whole);
    const std::string sentence = "and the runtime has tests, of the kernels and the models; \xe2\x96\x81\xc3\xa9";
    std::string text;
    while (text.size() < 150'000)
      text += text.size() < 50'000 ? any_bytes(rng, 7) : sentence.substr(0, size_t(rng.below(sentence.size())));
    CHECK(a.encode(text) == b.encode(text));
    const std::string same(70'000, 'e');  // a token may stand at each place
    CHECK(a.encode(same) == b.encode(same));
  }
}

TEST_CASE("bpe: a large text has the ids of its pieces, with any number of threads") {
  Rng rng{.seed = 5};
  std::string text;
  while (text.size() < 600'000) text += any_bytes(rng, 50) + "The runtime's kernels, 1234 of them.\n\n  e\u0301";
  const detail::Regex pattern(detail::kGpt2Pattern);
  const BpeTokenizer t = of(json_of("gpt2"));
  Ids expected;
  pattern.split(text, [&](size_t begin, size_t end, bool) {
    const Ids ids = t.encode(text.substr(begin, end - begin));
    expected.insert(expected.end(), ids.begin(), ids.end());
  });
  for (const int threads : {1, num_threads()}) {
    const ThreadsScope scope(threads);
    CHECK(t.encode(text) == expected);
  }
  // Texts between special tokens, normalised; the first error is that of the text.
  Json json = json_of("llama3");
  json["normalizer"] = Json{{"type", "NFC"}};
  const BpeTokenizer special = of(json);
  const std::string token = json["added_tokens"][0]["content"].get<std::string>();
  std::string documents;
  Ids parts;
  for (int i = 0; i < 40; ++i) {
    const std::string_view document = std::string_view(text).substr(size_t(i) * 15'000, 10'000);
    documents.append(document).append(token);
    for (const int64_t id : special.encode(document)) parts.push_back(id);
    parts.push_back(special.id_of(token));
  }
  CHECK(special.encode(documents, {.parse_special = true}) == parts);
  std::string bad(200'000, 'b');
  for (size_t i = 0; i < bad.size(); i += 10) bad.replace(i, 5, "aaaaa");
  const BpeTokenizer few = of(tiny_bpe());
  CHECK(few.encode(bad).size() == few.encode(bad.substr(0, 1000)).size() * 200);
  bad[150'001] = 'y', bad[150'003] = 'z';
  CHECK_SAYS_OF(value, few.encode(bad), "the byte 0x79");
}

TEST_CASE("bpe: JSON and back, ids without a token") {
  const BpeTokenizer t = of(tiny_bpe());
  CHECK(t.vocab_size() == 6);
  CHECK(t.decode(Ids{2, 3, 1}) == "aab");  // nothing has the id 3
  CHECK(t.encode("<e>b", {.parse_special = true}) == Ids{5, 1});
  CHECK(t.id_of("aaa") == 4);
  CHECK(t.id_of("<e>") == 5);
  CHECK(t.id_of("c") == -1);
  CHECK_SAYS_OF(value, t.encode("ac"), "the vocabulary has no token for the byte 0x63");
  CHECK_SAYS_OF(value, t.decode(Ids{0, 6}), "id 6 at position 1 is not in the vocabulary");
  const auto copy = Tokenizer::from_json(t.to_json());
  CHECK(copy->encode("aaab") == t.encode("aaab"));
  CHECK(copy->to_json() == t.to_json());
}

TEST_CASE("bpe: other files, and the tokenizers of bytes and characters as tokenizer.json") {
  const BpeTokenizer t = of(json_of("gpt2"));
  const Json model = json_of("gpt2")["model"];
  const Folder folder;
  std::string merges = "#version: 0.2\n";
  for (const Json& m : model["merges"]) merges += m[0].get<std::string>() + " " + m[1].get<std::string>() + "\r\n";
  detail::write_file_atomically(folder / "vocab.json", detail::text_of(model["vocab"]));
  detail::write_file_atomically(folder / "merges.txt", merges);
  const std::string text = "I'm here, 12 of the models.\n \xff";
  CHECK(read_tokenizer(folder.path).encode(text) == t.encode(text));
  detail::write_file_atomically(folder / "tokenizer.json", t.to_json());
  CHECK(read_tokenizer(folder.path).to_json() == t.to_json());
  CHECK(read_tokenizer(folder / "tokenizer.json").encode(text) == t.encode(text));
  const BpeTokenizer bytes = BpeTokenizer::from_json(tokenizer_json(ByteTokenizer()), "bytes");
  CHECK(bytes.vocab_size() == 256);
  CHECK(bytes.encode(text) == ByteTokenizer().encode(text));
  const Json characters = detail::own_json(tokenizer_json(CharTokenizer::from_text("b\u00e9a")));
  CHECK(detail::text_of(characters["model"]["vocab"]) == R"({"a":0,"b":1,"é":2})");
  CHECK(characters["model"]["type"] == Json("WordLevel"));
  CHECK_SAYS_OF(io, read_tokenizer(folder / "none"), "none");
  CHECK_SAYS_OF(value, read_tokenizer(folder / "tokenizer.model"), "tokenizer.model is no tokenizer.json");
  CHECK_SAYS_OF(io, read_tokenizer(Folder().path), "has neither tokenizer.json nor vocab.json and merges.txt");
}

TEST_CASE("bpe: wrong files are refused by line") {
  const auto vocab = [](const char* json, const char* merges) {
    return error_of(Error::Kind::value, [&] { BpeTokenizer::from_vocab(json, merges, "merges.txt"); });
  };
  CHECK_HAS(vocab(R"({"a":0,"b":1,"ab":2})", "#version\na b c\n"), "merges.txt, line 2: a merge has two words.");
  CHECK_HAS(vocab(R"({"a":0,"b":1,"ab":2})", "ab\n"), "merges.txt, line 1: a merge has two words.");
  CHECK_HAS(vocab(R"({"a":0,"a":1})", ""), "'a' comes twice");
  CHECK_HAS(vocab(R"({"a":0,"b":1})", "a b"),
            R"(model.merges has the element 0, "a b", and the vocabulary has no "ab")");
  const auto ranks = [](const char* text, const char* pattern = "gpt2") {
    return error_of(Error::Kind::value, [&] { BpeTokenizer::from_ranks(text, pattern, "r.tiktoken"); });
  };
  CHECK_HAS(ranks("YQ== 0\nY 1\n"), "r.tiktoken, line 2: the token is not base64.");
  CHECK_HAS(ranks("Y*== 0\n"), "line 1: the token is not base64.");
  CHECK_HAS(ranks("YQ==\n"), "line 1: it must be a token in base64 and its rank.");
  CHECK_HAS(ranks("YQ== x\n"), "line 1: it must be a token in base64 and its rank.");
  CHECK_HAS(ranks("YQ== 0\nYQ== 1\n"), "the token of rank 1 comes twice");
  CHECK_HAS(ranks("YQ== 0\n", ""), "It must be gpt2, llama3 or qwen2");
}

TEST_CASE("bpe: what a tokenizer.json must not have is refused with its path") {
  const auto with = [](auto change) { return bpe_refusal(changed(tiny_bpe(), change)); };
  const auto set = [&](const char* key, const char* value) {
    return with([&](Json& j) { j[key] = detail::own_json(value); });
  };
  const auto set_model = [&](const char* key, const char* value) {
    return with([&](Json& j) { j["model"][key] = detail::own_json(value); });
  };
  CHECK(with([](Json&) {}) == "no error");
  CHECK_HAS(set("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Bert"}]})"),
            R"(t.json: pre_tokenizer.pretokenizers[1] has the type "Bert", which is not known)");
  CHECK_HAS(set("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"(a)\\1"},"behavior":"Isolated"})"),
            "pre_tokenizer.pattern.Regex is refused: [pattern] an unknown escape at byte 4");
  CHECK_HAS(set("pre_tokenizer", R"({"type":"Split","pattern":{"String":"a"},"behavior":"Contiguous"})"),
            R"(pre_tokenizer.behavior is "Contiguous", which is not known)");
  CHECK_HAS(set("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
            "pre_tokenizer.pretokenizers[1] comes after ByteLevel, which must be the last");
  CHECK_HAS(set("normalizer", R"({"type":"Sequence","normalizers":[{"type":"Lowercase"}]})"),
            R"(normalizer.normalizers[0] has the type "Lowercase")");
  CHECK_HAS(set("post_processor", R"({"type":"BertProcessing"})"), R"(post_processor has the type "BertProcessing")");
  CHECK_HAS(set("decoder", R"({"type":"WordPiece"})"), R"(decoder has the type "WordPiece")");
  CHECK_HAS(set("decoder", "null"), "decoder is missing");
  CHECK_HAS(set("added_tokens", R"([{"id":1,"content":"a"}])"),
            R"(added_tokens[0] gives "a" the id 1, and the vocabulary 0)");
  CHECK_HAS(set("added_tokens", R"([{"id":1,"content":"c"}])"),
            R"(added_tokens[0] gives "c" the id 1, which another token has)");
  CHECK_HAS(set_model("type", R"("Unigram")"), R"(model has the type "Unigram")");
  CHECK_HAS(set_model("dropout", "0.5"), "model.dropout is 0.5, and must be null");
  CHECK_HAS(set_model("end_of_word_suffix", R"("</w>")"), R"(model.end_of_word_suffix is "</w>", and must be null)");
  CHECK_HAS(set_model("vocab", R"({"a":0,"b":0})"), R"(model.vocab gives "b" the id 0, which another token has)");
  CHECK_HAS(set_model("vocab", R"({"a":10000000})"), R"(model.vocab["a"] is 10000000, and ids are whole numbers)");
  CHECK_HAS(set_model("vocab", R"({"a":-1})"), "ids are whole numbers");
  CHECK_HAS(set_model("vocab", R"({"a":0.5})"), "ids are whole numbers");
  CHECK_HAS(set_model("merges", R"(["a c"])"),
            R"(model.merges has the element 0, "a c", and the vocabulary has no "c")");
  CHECK_HAS(set_model("merges", R"(["a a a"])"), "which is not two words");
  CHECK_HAS(set_model("merges", R"([["a"]])"), "which is neither two words nor a pair of strings");
  CHECK_HAS(set_model("unk_token", R"("<unk>")"), R"(model.unk_token is "<unk>", which is not in the vocabulary)");
  CHECK_HAS(set_model("ignore_merges", "3"), "model.ignore_merges is neither true nor false");
  CHECK_HAS(bpe_refusal(detail::own_json("{}")), "model is not an object");
  const auto refused_text = [](const std::string& text) {
    return error_of(Error::Kind::value, [&] { BpeTokenizer::from_json(text, "t.json"); });
  };
  CHECK_HAS(refused_text("["), "t.json is not JSON");
  CHECK_HAS(refused_text(R"({"model": {"vocab": {"a": 0, "a": 1}}})"), "'a' comes twice");
  CHECK_HAS(refused_text(std::string(1'000'000, '[')), "nested too deeply");
}

TEST_CASE("bpe: NFC composes, sorts marks, and leaves other bytes alone") {
  Json json = detail::own_json(tokenizer_json(ByteTokenizer()));
  json["normalizer"] = Json{{"type", "NFC"}};
  const BpeTokenizer t = of(json);
  const auto nfc = [&](std::string_view text) { return t.decode(t.encode(text)); };
  CHECK(nfc("e\u0301 plain \u00e9") == "\u00e9 plain \u00e9");
  CHECK(nfc("a\u0301\u0327") == "\u00e1\u0327");  // the cedilla goes first, and does not compose with a
  CHECK(nfc("c\u0301\u0327") == "\u1e09");        // both marks compose, one after the other
  CHECK(nfc("\u1100\u1161\u11a8\uac00\u11a8") == "\uac01\uac01");
  CHECK(nfc("\u212b\u2126\u0958") == "\u00c5\u03a9\u0915\u093c");  // one is excluded from composition
  CHECK(nfc("e\xff\u0301e\u0301\xff") == "e\xff\u0301\u00e9\xff");
  CHECK(nfc("\u0301") == "\u0301");
}
