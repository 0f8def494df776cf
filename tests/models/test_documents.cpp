// models/data/documents.h: documents of files, and the tokens that end them.
#include "support/files.h"
#include "support/helpers.h"

#include <tapegrad/tapegrad.h>

namespace {
using namespace tg;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

constexpr int64_t kEnd = 256, kOther = 257;
BpeTokenizer byte_level(const Texts& special = {"<|endoftext|>", "<|x|>"}) {
  Json json = detail::own_json(tokenizer_json(ByteTokenizer()));
  Json added = Json::array();
  for (const std::string& name : special)
    added.push_back({{"id", kEnd + int64_t(added.size())},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  json["added_tokens"] = added;
  return BpeTokenizer::from_json(detail::text_of(json), "t.json");
}
Texts documents_of(const Texts& paths, DocumentKind kind) {
  Texts all;
  detail::for_each_documents(paths, kind, [&](auto some) { all.insert(all.end(), some.begin(), some.end()); });
  return all;
}
struct Encoded : EncodedDocuments {
  Ids ids;
};
Encoded encoded(const Tokenizer& t, const Texts& paths, DocumentOptions how = {}) {
  Encoded e;
  static_cast<EncodedDocuments&>(e) = detail::encode_documents(
      t, paths, how, [&](std::span<const int64_t> ids) { e.ids.insert(e.ids.end(), ids.begin(), ids.end()); });
  return e;
}
}  // namespace

TEST_CASE("documents: a text file is one, its lines are some, and each line of JSON is one") {
  const Folder f;
  const std::string a = f / "a.txt", b = f / "b.jsonl";
  detail::write_file_atomically(a, "one\n\n two \r\nthree");
  detail::write_file_atomically(b, "{\"text\": \"x\\ny\", \"id\": 3}\n \n{\"text\": \"\"}\n{\"text\": \"z\"}");
  CHECK(documents_of({a}, DocumentKind::file) == Texts{"one\n\n two \r\nthree"});
  CHECK(documents_of({a}, DocumentKind::line) == Texts{"one", " two ", "three"});
  CHECK(documents_of({b, a}, DocumentKind::file) == Texts{"x\ny", "z", "one\n\n two \r\nthree"});
  CHECK(documents_of({a, b}, DocumentKind::line) == Texts{"one", " two ", "three", "x\ny", "z"});
  int64_t count = 0;
  CHECK(read_texts(Texts{a, b}, DocumentKind::file, &count) == "one\n\n two \r\nthreex\ny\nz\n");
  CHECK(count == 3);
}

TEST_CASE("documents: each ends by the end-of-text token, once") {
  const Folder f;
  const std::string a = f / "a.jsonl";
  detail::write_file_atomically(a, R"({"text": "ab"})"
                                   "\n"
                                   R"({"text": "c<|endoftext|>"})"
                                   "\n"
                                   R"({"text": "<|x|>"})"
                                   "\n");
  const BpeTokenizer t = byte_level();
  CHECK(t.end_of_text() == kEnd);
  const Encoded parsed = encoded(t, {a}, {.special = SpecialTokens::parse});
  CHECK(parsed.ids == Ids{t.encode("a")[0], t.encode("b")[0], kEnd, t.encode("c")[0], kEnd, kOther, kEnd});
  CHECK(parsed.special == "");
  CHECK(parsed.documents == 3);
  CHECK(parsed.tokens == 7);
  CHECK(parsed.bytes == 2 + 14 + 5);
  const Encoded plain = encoded(t, {a});
  CHECK(plain.special == "<|endoftext|>");
  CHECK(std::ranges::count(plain.ids, kEnd) == 3);
  CHECK(plain.ids.size() == 2 + 14 + 5 + 3);
}

TEST_CASE("documents: without an end-of-text token they are joined") {
  const Folder f;
  detail::write_file_atomically(f / "a.txt", "ab\ncd");
  detail::write_file_atomically(f / "b.txt", "e");
  const Texts both{f / "a.txt", f / "b.txt"};
  const ByteTokenizer bytes;
  CHECK(bytes.end_of_text() == -1);
  const Encoded files = encoded(bytes, both), lines = encoded(bytes, both, {.documents = DocumentKind::line});
  CHECK(bytes.decode(files.ids) == "ab\ncde");
  CHECK(files.documents == 2);
  CHECK(bytes.decode(lines.ids) == "ab\ncd\ne\n");
  CHECK(lines.documents == 3);
  CHECK(byte_level({"<|x|>"}).end_of_text() == -1);
  CHECK(byte_level({"<|x|>", "</s>"}).end_of_text() == kEnd + 1);
}

TEST_CASE("documents: many, on all threads, have the ids of each one alone, however long it is") {
  const Folder f;
  const std::string path = f / "a.jsonl";
  const BpeTokenizer t = byte_level();
  Rng rng{7};
  std::string lines;
  Ids want;
  const auto add = [&](size_t n) {
    std::string text(n, ' ');
    for (char& c : text) c = "abc <|>\n"[rng.below(8)];
    lines += detail::text_of(Json{{"text", text}}) + "\n";
    for (const int64_t id : t.encode(text)) want.push_back(id);
    want.push_back(kEnd);
  };
  for (int i = 0; i < 3000; ++i) add(1 + size_t(rng.below(200)));
  add(9 << 20);  // longer than what is read at a time
  add(1);
  detail::write_file_atomically(path, lines);
  CHECK(encoded(t, {path}).ids == want);
}

TEST_CASE("documents: wrong files and lines are refused by their place") {
  const Folder f;
  const auto refused = [&](const char* name, std::string_view content) {
    detail::write_file_atomically(f / name, content);
    return error_of([&] { documents_of({f / name}, DocumentKind::file); });
  };
  CHECK_HAS(refused("cut.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b"), "line 2 of " + f / "cut.jsonl");
  CHECK_HAS(refused("keys.jsonl", R"({"prompt": "a", "completion": "b"})"),
            "line 1 of " + f / "keys.jsonl" + " is an object with the keys 'prompt' 'completion'. It must be");
  CHECK_HAS(refused("list.jsonl", "[1]"), "line 1 of " + f / "list.jsonl" + " is array. It must be");
  CHECK_HAS(refused("null.jsonl", R"({"text": null})"), "is an object whose \"text\" is null. It must be");
  for (const std::string key : {"messages", "conversations", "prompt", "instruction", "text"})
    for (const std::string begin : {"[{", " \n[\n  {", "{", "{\n  "})
      for (const DocumentKind kind : {DocumentKind::file, DocumentKind::line}) {
        detail::write_file_atomically(f / "data.json", begin + "\"" + key + "\": \"a\"");
        CHECK_SAYS(documents_of({f / "data.json"}, kind),
                   "data.json is JSON with \"" + key + "\", and would be learned");
      }
  detail::write_file_atomically(f / "other.json", R"({"a": 1})");
  CHECK(documents_of({f / "other.json"}, DocumentKind::file).size() == 1);
  CHECK_HAS(refused("empty.jsonl", ""), "is empty");
  detail::write_file_atomically(f / "blank", "\n \n");
  CHECK_SAYS(encoded(byte_level(), {f / "blank"}, {.documents = DocumentKind::line}),
             "has no document: its lines are blank");
  CHECK_SAYS(read_texts(Texts{f / "blank"}, DocumentKind::line), "has no document: its lines are blank");
  CHECK_SAYS(documents_of({}, DocumentKind::file), "no text is named");
  CHECK_SAYS(documents_of({f / "gone.jsonl"}, DocumentKind::line), "No such file");
}
