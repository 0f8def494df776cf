// models/data/bpe_train.h against Hugging Face's trainer (tests/data/make_bpe_training.py) and a naive one, on parts of
// texts, refusals.
#include "support/files.h"
#include "support/refusals.h"
#include "support/threads.h"

#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <map>

namespace {
using namespace tg;
using Merges = std::vector<std::vector<std::string>>;

Json model_of(const BpeTokenizer& t) { return detail::own_json(t.to_json())["model"]; }
Merges merges_of(const BpeTokenizer& t) {
  Merges all;
  const Json model = model_of(t);
  for (const Json& merge : model["merges"]) all.push_back(merge.get<std::vector<std::string>>());
  return all;
}
std::vector<std::string> written(const Folder& folder, const std::vector<std::string>& texts) {
  std::vector<std::string> paths;
  for (const std::string& text : texts) {
    paths.push_back(folder / fmt::format("{}.txt", paths.size()));
    detail::write_file_atomically(paths.back(), text);
  }
  return paths;
}
BpeTokenizer trained_on(const std::vector<std::string>& texts, const BpeTraining& o) {
  const Folder folder;
  return train_bpe(written(folder, texts), o);
}

// Counts all pairs again before each merge.
Merges naive_merges(const std::map<std::string, int>& words, size_t size, int least) {
  std::map<std::string, int> ids{{"a", 64}, {"b", 65}, {"c", 66}, {"\u0120", 220}};
  std::vector<std::pair<std::vector<std::string>, int>> split;
  for (const auto& [word, count] : words) {
    split.emplace_back(std::vector<std::string>(), count);
    for (const char c : word) split.back().first.push_back(c == ' ' ? "\u0120" : std::string(1, c));
  }
  Merges merges;
  for (size_t next = 256; next < size; ++next) {
    std::map<std::pair<int, int>, int> counts;
    std::map<int, std::string> names;
    for (const auto& [name, id] : ids) names[id] = name;
    for (const auto& [word, count] : split)
      for (size_t i = 0; i + 1 < word.size(); ++i) counts[{ids[word[i]], ids[word[i + 1]]}] += count;
    const auto most = std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; });  // first on ties
    if (most == counts.end() || most->second < least) break;
    const std::string left = names[most->first.first], right = names[most->first.second];
    merges.push_back({left, right});
    CHECK(ids.emplace(left + right, int(next)).second);
    for (auto& [word, count] : split)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] += right;
          word.erase(word.begin() + ptrdiff_t(i) + 1);
        }
  }
  return merges;
}

std::string hostile_text(Rng& rng, size_t n) {
  const std::vector<std::string> parts{"a",       " ",    "\n",   "  ",   "the",      " the", "'ll",  "1",
                                       "2345",    "<e>",  "<e",   ">x",   "<e>of",    "é",    "日本", "😀",
                                       "e\u0301", "\r\n", "\xff", "\xc3", "\xe6\x97", "!!"};
  std::string text;
  while (text.size() < n) text += parts[rng.below(parts.size())];
  return text;
}
}  // namespace

TEST_CASE("train_bpe: tokens and merges are those of tokenizers") {
  const Json fixture = detail::own_json(read_file(TG_TEST_DATA "/bpe_training.json"));
  const Folder folder;
  std::vector<std::string> paths = written(folder, {fixture["text"].get<std::string>()});
  paths.insert(paths.begin(), TG_TEST_DATA "/prose.txt");
  for (const Json& c : fixture["cases"]) {
    const BpeTraining o{.vocab_size = c["vocab_size"].get<int64_t>(),
                        .pattern = c["pattern"].get<std::string>(),
                        .special = c["special"].get<std::vector<std::string>>(),
                        .min_frequency = c["min_frequency"].get<int64_t>()};
    CAPTURE(o.pattern);
    for (const int threads : {1, 2}) {
      const ThreadsScope some(threads);
      const BpeTokenizer t = train_bpe(paths, o);
      const auto tokens = c["tokens"].get<std::vector<std::string>>();
      REQUIRE(t.vocab_size() == int64_t(tokens.size()));
      for (size_t id = 0; id < tokens.size(); ++id) CHECK(t.id_of(tokens[id]) == int64_t(id));
      Merges expected;
      for (const Json& merge : c["merges"]) expected.push_back(merge.get<std::vector<std::string>>());
      CHECK(merges_of(t) == expected);
      for (size_t id = 0; id < o.special.size(); ++id)
        CHECK(t.encode(o.special[id], {.parse_special = true}) == std::vector{int64_t(id)});
    }
  }
}

TEST_CASE("train_bpe: merges are those of a recount before each merge, with ties and runs of a letter") {
  Rng rng{.seed = 3};
  int ended_early = 0;
  for (int round = 0; round < 200; ++round) {
    const uint64_t letters = 1 + rng.below(3), longest = 1 + rng.below(12), number = 1 + rng.below(30);
    std::map<std::string, int> words;
    std::string text;
    for (uint64_t i = 0; i < number; ++i) {
      std::string word = " ";
      for (uint64_t n = 1 + rng.below(longest); n > 0; --n) word += char('a' + int(rng.below(letters)));
      ++words[word];
      text += word;
    }
    CAPTURE(text);
    const size_t size = 256 + rng.below(60);
    const int least = 1 + int(rng.below(3));
    const BpeTokenizer t = trained_on({text}, {.vocab_size = int64_t(size), .min_frequency = least});
    CHECK(merges_of(t) == naive_merges(words, size, least));
    ended_early += t.vocab_size() < int64_t(size);
    CHECK(t.decode(t.encode(text)) == text);
  }
  CHECK(ended_early > 0);
  CHECK(ended_early < 200);
}

TEST_CASE("train_bpe: texts are counted as encode() splits them, however they are read") {
  Rng rng{.seed = 5};
  const Folder folder;
  for (const char* pattern : {"gpt2", "llama3", "qwen2"})
    for (int round = 0; round < 20; ++round) {
      const BpeTraining o{.pattern = pattern, .special = {"<e>", "<e>of", "of<e>"}};
      const std::vector<std::string> texts{hostile_text(rng, 400), hostile_text(rng, 1 + rng.below(40))};
      const auto paths = written(folder, texts);
      // A tokenizer without merges gives the bytes; its special tokens and cuts are those of the trained one.
      std::map<std::string, int64_t> whole;
      for (const auto& [text, count] : detail::count_pre_tokens(paths, o, 1 << 20)) whole[text] = count;
      for (const size_t chunk : {1, 2, 3, 7, 50, 399}) {
        std::map<std::string, int64_t> parts;
        for (const auto& [text, count] : detail::count_pre_tokens(paths, o, chunk)) parts[text] = count;
        CHECK(parts == whole);
      }
      // One id per pre-token, where every one is a token.
      const BpeTokenizer t = train_bpe(paths, {.pattern = pattern, .special = o.special, .min_frequency = 1});
      int64_t ids = 0, special = 0, counted = 0;
      for (const std::string& text : texts) {
        const auto all = t.encode(text, {.parse_special = true});
        CHECK(t.decode(all) == text);
        ids += int64_t(all.size());
        special += std::ranges::count_if(all, [](int64_t id) { return id < 3; });
      }
      for (const auto& [text, count] : whole) counted += count;
      CHECK(special > 0);
      CHECK(ids - special == counted);
    }
}

TEST_CASE("train_bpe: trained tokenizers give back any text") {
  Rng rng{.seed = 9};
  for (int round = 0; round < 30; ++round) {
    const std::string text = hostile_text(rng, 1 + rng.below(600)), other = hostile_text(rng, 100);
    const BpeTraining o{.vocab_size = 256 + int64_t(rng.below(100)), .pattern = round % 2 ? "gpt2" : "qwen2"};
    const BpeTokenizer t = trained_on({text}, o);
    for (const std::string& s : {text, other}) CHECK(t.decode(t.encode(s)) == s);
    CHECK(BpeTokenizer::from_json(t.to_json(), "again").encode(text) == t.encode(text));
  }
}

TEST_CASE("train_bpe: bytes that are not UTF-8 are merged, and texts do not share pre-tokens") {
  const BpeTokenizer t = trained_on({"\xff\xfe \xff\xfe"}, {});
  CHECK(t.encode("\xff\xfe").size() == 1);
  CHECK(trained_on({"xa", "bx", "xa", "bx"}, {}).encode("ab").size() == 2);
  CHECK(trained_on({"x ab ab"}, {}).encode("ab").size() == 1);
}

TEST_CASE("train_bpe: a special token that merges make has one id") {
  const BpeTokenizer t = trained_on({"abab abab abab"}, {.special = {"a", "bab"}});
  CHECK(t.id_of("a") == 0);
  CHECK(t.vocab_size() < 260);
  CHECK(t.decode(t.encode("abab xbab")) == "abab xbab");
}

TEST_CASE("train_bpe: wrong settings and texts are refused") {
  const Folder folder;
  const std::vector<std::string> text = written(folder, {"the cat the cat"});
  const auto with = [&](BpeTraining o) { return train_bpe(text, o); };
  const auto on = [&](const std::string& name, std::string_view content) {
    detail::write_file_atomically(folder / name, content);
    return train_bpe(std::vector{text[0], folder / name}, {});
  };
  expect(REFUSES(train_bpe({}, {}), value, "no text is named"));
  expect(REFUSES(with({.vocab_size = 257, .special = {"<a>", "<b>"}}), value, "vocab_size is 257", "from 258 to"));
  expect(REFUSES(with({.vocab_size = 1 << 21}), value, "vocab_size is 2097152", "to 1048576"));
  expect(REFUSES(with({.pattern = "gpt5"}), value, "the pattern is \"gpt5\". It must be gpt2, llama3 or qwen2"));
  expect(REFUSES(with({.pattern = ""}), value, "the pattern is \"\""));
  expect(REFUSES(with({.special = {"<a>", "<b>", "<a>"}}), value, "the special token <a> is given twice"));
  expect(REFUSES(with({.special = {""}}), value, "a special token is empty"));
  expect(REFUSES(with({.special = {"<\xff>"}}), value, "a special token has the byte 0xff"));
  expect(REFUSES(with({.special = {"\u0120"}}), value, "the special token \u0120 is also how"));
  expect(REFUSES(with({.special = {"\u0120cat"}}), value, "the special token \u0120cat is also how"));
  expect(REFUSES(with({.min_frequency = 0}), value, "min_frequency is 0"));
  expect(REFUSES(with({.special = {"the cat the cat"}}), value, "the texts have special tokens only"));
  expect(REFUSES(on("empty.txt", ""), io, "empty.txt is empty"));
  expect(REFUSES(on("ids.npy", "x"), value, "ids.npy is a token file"));
  expect(REFUSES(on("ids.bin", "x"), value, "ids.bin is a token file"));
  expect(REFUSES(on("ids.txt", "\x93NUMPY and so on"), io, "ids.txt is an array of NumPy"));
  expect(REFUSES(train_bpe(std::vector{folder / "none.txt"}, {}), io, "none.txt"));
  expect(REFUSES(train_bpe(std::vector{folder.path}, {}), io, folder.path));
}
