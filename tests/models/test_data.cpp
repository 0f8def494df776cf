// models/data/dataset.h: token data (batches, windows, splits).
#include "support/files.h"

#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <map>
#include <numeric>

namespace {
using namespace tg;
using namespace std::string_view_literals;
using Ids = std::vector<int64_t>;

TokenData counting(int64_t n, int64_t first = 0) {  // token i is first + i
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return TokenData::from_tokens(ids, "count");
}
std::vector<int32_t> all_of(const TokenData& d) {
  std::vector<int32_t> v(size_t(d.size()));
  d.copy(0, v);
  return v;
}
std::vector<int32_t> token_values(const Tensor& t) { return t.to_vector<int32_t>(); }
}  // namespace

TEST_CASE("data: texts are joined in the order given") {
  const Folder folder;
  detail::write_file_atomically(folder / "a", "one\n");
  detail::write_file_atomically(folder / "b", "two");
  detail::write_file_atomically(folder / "empty", "");
  const auto read = [&](std::vector<std::string> names) {
    for (auto& name : names) name = folder / name;
    return read_texts(names);
  };
  CHECK(read({"b", "a", "b"}) == "twoone\ntwo");
  CHECK_SAYS_OF(value, read({}), "[data] no text is named.");
  CHECK_SAYS_OF(io, read({"a", "none"}), folder / "none: No such file or directory.");
  CHECK_SAYS_OF(io, read({"."}), folder / ".: it is a folder.");
  CHECK_SAYS_OF(io, read({"a", "empty"}), "[data] " + folder / "empty is empty.");
}

TEST_CASE("data: tokens in memory and in a file read the same") {
  const Folder folder;
  const Ids ids{0, 258, 65535, 7};
  detail::write_file_atomically(folder / "t.bin", std::string_view("\0\0\2\1\xff\xff\7\0", 8));
  const TokenData file = TokenData::from_file(folder / "t.bin"), memory = TokenData::from_tokens(ids);
  CHECK(file.size() == 4);
  CHECK(file.name() == folder / "t.bin");
  CHECK(all_of(file) == std::vector<int32_t>{0, 258, 65535, 7});
  CHECK(all_of(memory) == all_of(file));
  CHECK(all_of(TokenData::from_tokens(Ids{65536, 1, INT32_MAX})) == std::vector<int32_t>{65536, 1, INT32_MAX});
  CHECK(TokenData::from_tokens({}).size() == 0);
  TokenData part = [&] { return TokenData::from_file(folder / "t.bin").slice(1, 4).slice(0, 2); }();  // keeps the file
  CHECK(all_of(part) == std::vector<int32_t>{258, 65535});
  CHECK(memory.slice(4, 4).size() == 0);
  detail::write_file_atomically(folder / "odd.bin", "abc");
  detail::write_file_atomically(folder / "empty.bin", "");
  const auto open = [&](const char* name) {
    return error_of(Error::Kind::io, [&] { TokenData::from_file(folder / name); });
  };
  CHECK_HAS(open("odd.bin"), "[data] " + folder / "odd.bin has 3 bytes.");
  CHECK_HAS(open("empty.bin"), folder / "empty.bin is empty.");
  CHECK_HAS(open("none.bin"), folder / "none.bin: No such file");
  CHECK_SAYS_OF(value, TokenData::from_tokens(Ids{0, -1}, "x"), "[data] token -1 at position 1 of x does not fit.");
  CHECK_SAYS_OF(value, TokenData::from_tokens(Ids{int64_t(INT32_MAX) + 1}), "token 2147483648 at position 0");
}

TEST_CASE("data: NumPy files of tokens, of 16 and 32 bits") {
  const Folder folder;
  const auto array = [&](std::string_view dict, std::string_view content, char version = 1) {
    std::string text = "\x93NUMPY";
    text += {version, 0, char(uint8_t(dict.size() + 1)), 0};
    if (version > 1) text += std::string(2, '\0');
    detail::write_file_atomically(folder / "t.npy", text.append(dict).append("\n").append(content));
    return folder / "t.npy";
  };
  const auto read = [&](auto... words) { return all_of(TokenData::from_file(array(words...))); };
  constexpr const char *kNarrow = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }   ",
                       *kWide = "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }";
  CHECK(read(kNarrow, "\1\2\xff\xff"sv) == std::vector<int32_t>{513, 65535});
  CHECK(read(kNarrow, "\1\2\xff\xff"sv, char(2)) == std::vector<int32_t>{513, 65535});
  CHECK(read(kWide, "\1\0\1\0\xff\xff\xff\x7f"sv) == std::vector<int32_t>{65537, INT32_MAX});
  CHECK(read(R"({"descr":"<u4","fortran_order":False,"shape":(1,)})", "\1\0\1\0"sv) == std::vector<int32_t>{65537});
  CHECK(read("{'shape': (2,), 'fortran_order': False, 'descr': '<u2'}", "\1\2\xff\xff"sv) ==
        std::vector<int32_t>{513, 65535});
  CHECK(read("{'fortran_order': False, 'shape': (2,), 'descr': '<u2', }", "\1\2\xff\xff"sv) ==
        std::vector<int32_t>{513, 65535});
  const TokenData wide = TokenData::from_file(array(kWide, "\1\0\1\0\xff\xff\xff\xff"sv));
  CHECK_SAYS_OF(value, wide.slice(0, 1).check_vocabulary(65537), "token 65537 at position 0 of ");
  CHECK_SAYS_OF(value, wide.check_vocabulary(1 << 20), "token 4294967295 at position 1 of ");
  CHECK_SAYS_OF(value, all_of(wide), "Token ids are in [0, 2^31). Check the tokenizer and, for ids without a header, ");
  CHECK(all_of(wide.slice(0, 1)) == std::vector<int32_t>{65537});
  CHECK(wide.bytes() == 0);

  const auto refused = [&](auto... words) {
    return error_of(Error::Kind::io, [&] { TokenData::from_file(array(words...)); });
  };
  const std::pair<const char*, const char*> others[] = {{"<u2", "<i2"},          {"<u2", ">u2"},
                                                        {"<u2", "<f4"},          {"False", "True"},
                                                        {"(2,)", "()"},          {"(2,)", "(2, 1)"},
                                                        {"(2,)", "(-2,)"},       {"(2,)", "(x,)"},
                                                        {"(2,)", "(2,"},         {"(2,)", "2"},
                                                        {"(2,)", "'2'"},         {"(2,)", "(2,), 'x': 1"},
                                                        {"'shape': (2,), ", ""}, {"'descr': '<u2'", "'shape': (2,)"}};
  for (const auto& [from, to] : others) {
    std::string dict = kNarrow;
    dict.replace(dict.find(from), std::string_view(from).size(), to);
    CHECK_HAS(refused(dict, "\1\2\3\4"sv), "t.npy holds {'");
  }
  CHECK_HAS(refused(kNarrow, "\1\2\3"sv), "has 3 bytes after its header, which says that it has 2 tokens of 2 bytes");
  CHECK_HAS(refused(kNarrow, "\1\2\3\4\5\6"sv), "has 6 bytes after its header");
  CHECK_HAS(refused(kWide, "\1\2\3\4"sv), "which says that it has 2 tokens of 4 bytes");
  CHECK_HAS(refused("{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", ""sv), "has no tokens");
  CHECK_HAS(refused("{'descr': '<u2', 'fortran_order': False, 'shape': (18446744073709551617,), }", ""sv), "holds {");
  CHECK_HAS(refused(kNarrow, "\1\2\3\4"sv, char(4)), "has an unknown version");
  detail::write_file_atomically(folder / "t.npy", std::string_view("\x93NUMPY\1\0\xff\xff{'descr'", 17));
  CHECK_SAYS_OF(io, TokenData::from_file(folder / "t.npy"), "a header that is cut off");
  detail::write_file_atomically(folder / "t.npy", "\x93NUMP");
  CHECK_SAYS_OF(io, TokenData::from_file(folder / "t.npy"), "does not begin as a file of");
  fs::rename(array(kNarrow, "\1\2\3\4"sv), folder / "t.bin");
  CHECK(all_of(TokenData::from_file(folder / "t.bin")) == std::vector<int32_t>{513, 1027});  // found by its content
}

TEST_CASE("data: token files are written as they are read") {
  const Folder folder;
  Ids ids(40'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i * 7919 % 65536);
  const auto written = [&](const TokenData& data, const char* name) {
    data.write(folder / name);
    const TokenData again = TokenData::from_file(folder / name);
    CHECK(all_of(again) == all_of(data));
    again.write(folder / "again.npy");
    CHECK(all_of(TokenData::from_file(folder / "again.npy")) == all_of(data));
    return fs::file_size(folder / name);
  };
  const TokenData narrow = TokenData::from_tokens(ids);
  CHECK(written(narrow, "t.bin") == 2 * 40'000);
  CHECK(written(narrow, "t.npy") == 128 + 2 * 40'000);
  ids[20'000] = 65536;
  const TokenData wide = TokenData::from_tokens(ids, "x");
  CHECK(written(wide, "wide.npy") == 128 + 4 * 40'000);
  CHECK_SAYS_OF(value, wide.write(folder / "wide.bin"), "[data] x has tokens of 4 bytes");
  CHECK_SAYS_OF(value, wide.write(folder / "wide.txt"), "It must end in .npy or .bin");
  CHECK(!fs::exists(folder / "wide.bin"));
}

TEST_CASE("data: a text is encoded in pieces, into as few bytes as its vocabulary takes") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "a\xc3\xa9\xe2\x82\xac";
  const auto characters = CharTokenizer::from_text(text);
  const ByteTokenizer bytes;
  for (const Tokenizer* t : std::initializer_list<const Tokenizer*>{&characters, &bytes}) {
    const Ids ids = t->encode(text);
    CHECK(all_of(TokenData::from_text(*t, text, "x")) == std::vector<int32_t>(ids.begin(), ids.end()));
    size_t pieces = 0, most = 0;
    t->encode(text, {}, [&](std::span<const int64_t> piece) { ++pieces, most = std::max(most, piece.size()); });
    CHECK(pieces > 1);
    CHECK(most < 10'000);
  }
  CHECK_SAYS_OF(value, TokenData::from_text(characters, text + "\xc3\xa4"), "U+00E4 at byte 30000");
  // A tokenizer of more ids than 16 bits hold.
  struct Wide final : Tokenizer {
    void encode(std::string_view, EncodeOptions, const Take& take) const override { take(Ids{0, 70'000}); }
    std::string decode_next(int64_t, bool&) const override { return ""; }
    int64_t vocab_size() const override { return 70'001; }
    std::string to_json() const override { return ""; }
  };
  CHECK(all_of(TokenData::from_text(Wide(), "ab")) == std::vector<int32_t>{0, 70'000});
  CHECK(TokenData::from_text(Wide(), "ab").bytes() == 2 * 4);
  CHECK(TokenData::from_text(bytes, text).bytes() == 2 * int64_t(text.size()));
}

TEST_CASE("data: a token file that is cut shorter or written to while it is in use is an error") {
  const Folder folder;
  const std::string path = folder / "t.bin";
  detail::write_file_atomically(path, std::string(20'000, '\1'));
  const TokenData data = TokenData::from_file(path), part = data.split(0.5).val;
  std::vector<int32_t> some(5000);
  data.copy(0, some);
  CHECK(some == std::vector<int32_t>(5000, 257));
  part.check_unchanged();
  CHECK(data.bytes() == 0);
  CHECK_SAYS_OF(value, data.check_vocabulary(257), "token 257 at position 0 of " + path);
  SUBCASE("replaced") {
    detail::write_file_atomically(path, "ab");
    part.copy(0, some);
    part.check_unchanged();
  }
  SUBCASE("cut shorter") {
    fs::resize_file(path, 100);
    const std::string what =
        "[file] " + path + " was changed while it was being read: it had 20000 bytes, and has 100.";
    CHECK_SAYS_OF(io, part.copy(0, some), what);
    CHECK_SAYS_OF(io, part.check_unchanged(), what);
  }
  SUBCASE("written to") {
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::milliseconds(20));
    CHECK_SAYS_OF(io, part.check_unchanged(), path + " was written to while it was being read");
  }
}

TEST_CASE("data: ranges outside are refused with their numbers") {
  const TokenData d = counting(10);
  std::vector<int32_t> three(3);
  d.copy(7, three);
  CHECK(three == std::vector<int32_t>{7, 8, 9});
  CHECK_SAYS_OF(value, d.copy(8, three), "[data] 3 tokens from position 8 of count are asked for. It has 10.");
  CHECK_SAYS_OF(value, d.copy(-1, three), "from position -1");
  CHECK_SAYS_OF(value, d.copy(INT64_MAX, three), "from position 9223372036854775807");
  CHECK_SAYS_OF(value, d.slice(2, 11), "[data] slice [2, 11) of count is outside. It has 10 tokens.");
  CHECK_SAYS_OF(value, d.slice(-1, 2), "slice [-1, 2)");
  CHECK_SAYS_OF(value, d.slice(3, 2), "slice [3, 2)");
}

TEST_CASE("data: a split cuts at int(fraction * size)") {
  const auto [train, val] = counting(99).split(0.9);  // 89.1
  CHECK(train.size() == 89);
  CHECK(all_of(train) == all_of(counting(89)));
  CHECK(all_of(val) == all_of(counting(10, 89)));
  CHECK(train.name() == "the training part of count");
  CHECK(val.name() == "the validation part of count");
  CHECK(counting(10).split(1 - 0.8).train.size() == 2);  // 1 - 0.8 is less than 0.2
  CHECK(counting(100).split(1 - 0.93).train.size() == 7);
  CHECK(counting(5).split(1).val.size() == 0);
  CHECK(counting(5).split(0.1).train.size() == 0);
  for (const double fraction : {0.0, -0.5, 1.5, std::nan("")})
    CHECK_SAYS_OF(value, counting(5).split(fraction), "of count. It must be above 0 and at most 1.");
  CHECK_SAYS_OF(value, counting(5).split(1.5), "[data] the training part is 1.5 of count.");
}

TEST_CASE("data: the first token outside of the vocabulary is named") {
  counting(10).check_vocabulary(10);
  CHECK_SAYS_OF(value, counting(10).check_vocabulary(7),
                "[data] token 7 at position 7 of count is not in the vocabulary. The model takes ids in [0, 7).");
  CHECK_SAYS_OF(value, counting(10).split(0.5).val.check_vocabulary(7),
                "token 7 at position 2 of the validation part of count");
  CHECK_SAYS_OF(value, TokenData::from_tokens(Ids{1, 70000}).check_vocabulary(65536), "token 70000 at position 1");
}

TEST_CASE("data: batches are windows of the data, targets one further") {
  ShuffledBatches batches(counting(50, 1000), 3, 8, Rng{1});
  for (int n = 0; n < 20; ++n) {
    const Batch b = batches.next();
    CHECK(b.inputs.shape() == Shape{3, 8});
    CHECK(b.targets.shape() == Shape{3, 8});
    CHECK(b.inputs.dtype() == DType::i32);
    CHECK(b.targets.dtype() == DType::i32);
    const auto x = token_values(b.inputs), y = token_values(b.targets);
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(x[i] == x[i / 8 * 8] + int32_t(i % 8));
      CHECK(y[i] == x[i] + 1);
    }
  }
}

TEST_CASE("data: every start is equally likely, the last one included") {
  constexpr int64_t kTokens = 12, kContext = 4, kStarts = kTokens - kContext, kDraws = 16'000;
  ShuffledBatches batches(counting(kTokens), kDraws, kContext, Rng{5});
  const auto x = token_values(batches.next().inputs);
  std::map<int32_t, int> count;
  for (size_t i = 0; i < x.size(); i += kContext) ++count[x[i]];
  CHECK(count.size() == kStarts);
  CHECK(count.rbegin()->first == kStarts - 1);
  // 2000 expected, standard deviation sqrt(16000 * 1/8 * 7/8) = 42; the limit is five of them.
  for (const auto& [start, n] : count) CHECK(std::abs(n - 2000) < 210);
}

TEST_CASE("data: in epochs each window comes once before any comes again, in another order each time") {
  constexpr int64_t kWindows = 37, kContext = 8, kBatch = 5;  // batches across the ends of epochs
  ShuffledBatches batches(counting(kWindows * kContext + 4), kBatch, kContext, Rng{5}, SampleOrder::epochs);
  std::vector<int32_t> starts;
  while (starts.size() < 4 * kWindows) {
    const Batch b = batches.next();
    const auto x = token_values(b.inputs), y = token_values(b.targets);
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(x[i] == x[i / kContext * kContext] + int32_t(i % kContext));
      CHECK(y[i] == x[i] + 1);
      if (i % kContext == 0) starts.push_back(x[i]);
    }
  }
  std::vector<std::vector<int32_t>> epochs;
  for (size_t e = 0; e < 4; ++e) {
    std::vector<int32_t> one(starts.begin() + int64_t(e) * kWindows, starts.begin() + int64_t(e + 1) * kWindows);
    for (const auto& other : epochs) CHECK(one != other);
    epochs.push_back(one);
    std::ranges::sort(one);
    for (int64_t w = 0; w < kWindows; ++w) CHECK(one[size_t(w)] == w * kContext);
  }
  ShuffledBatches other(counting(kWindows * kContext + 4), kBatch, kContext, Rng{6}, SampleOrder::epochs);
  CHECK(token_values(other.next().inputs)[0] != starts[0]);
  CHECK(token_values(ShuffledBatches(counting(5), 2, 4, Rng{}, SampleOrder::epochs).next().inputs) ==
        std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3});
}

TEST_CASE("data: in sequential order a step takes adjacent windows of one file, and drops what is left of it") {
  constexpr int64_t kContext = 4, kBatch = 2, kAccumulate = 3;  // a step: 24 tokens and 1
  const TokenData all = counting(100), parts[] = {all.slice(0, 53), all.slice(53, 78), all.slice(78, 100).slice(0, 22)};
  ShuffledBatches batches(TokenData::join(std::span(parts, 2)), kBatch, kContext, Rng{5}, SampleOrder::sequential,
                          kAccumulate);
  for (int round = 0; round < 2; ++round)
    for (const int step : {0, 24, 53})  // 52 / 24 steps of the first file, one of the second
      for (int i = 0; i < kAccumulate; ++i) {
        const Batch b = batches.next();
        for (int w = 0; w < kBatch; ++w)
          for (int t = 0; t < kContext; ++t) {
            const int32_t token = int32_t(step + (i * kBatch + w) * kContext + t);
            CHECK(token_values(b.inputs)[size_t(w * kContext + t)] == token);
            CHECK(token_values(b.targets)[size_t(w * kContext + t)] == token + 1);
          }
      }
  CHECK_SAYS(ShuffledBatches(TokenData::join(parts), kBatch, kContext, {}, SampleOrder::sequential, kAccumulate),
             "has 22 tokens, and in sequential order each needs those of a step, 2 x 3 x 4 + 1");
}
TEST_CASE("data: a validation part of its own is what split() returns, and belongs to the data's identity") {
  const TokenData train = counting(50), val = counting(20).slice(7, 20), both = train.with_validation(val);
  CHECK(both.split(0.5).train.size() == 50);
  CHECK(both.split(0.5).val.size() == 13);
  CHECK(!both.split(0.5).train.validation());
  CHECK(!DataIdentity::of(both).same_tokens(DataIdentity::of(train)));
  CHECK(!DataIdentity::of(both).same_tokens(DataIdentity::of(train.with_validation(val.slice(0, 12)))));
  CHECK_SAYS(both.check_vocabulary(15), "token 15");
  CHECK_SAYS(train.slice(0, 5).with_validation(val).check_vocabulary(15), "token 15");
}

TEST_CASE("data: the generator is the cursor of batches") {
  const TokenData d = counting(1000);
  const auto first = [&](Rng rng) { return token_values(ShuffledBatches(d, 4, 8, rng).next().inputs); };
  for (const SampleOrder order : {SampleOrder::random, SampleOrder::epochs, SampleOrder::sequential}) {
    ShuffledBatches one(d, 4, 8, Rng{3}, order), two(d, 4, 8, Rng{9}, order);
    one.next(), two.next();
    two.set_rng(one.rng());
    CHECK(token_values(two.next().inputs) == token_values(one.next().inputs));
  }
  CHECK(first(Rng{3}) == first(Rng{3}));
  CHECK(first(Rng{3}) != first(Rng{4}));
  CHECK(first(Rng{3}) != first(Rng{3}.split(1)));
  ShuffledBatches a(d, 4, 8, Rng{3}), b(d, 4, 8, Rng{9});
  const auto begin = token_values(a.next().inputs);
  const Rng cursor = a.rng();
  const auto second = token_values(a.next().inputs);
  CHECK(begin != second);
  b.next();
  b.set_rng(cursor);
  CHECK(token_values(b.next().inputs) == second);
  CHECK(a.rng() == b.rng());
}

TEST_CASE("data: batches need context + 1 tokens") {
  CHECK(token_values(ShuffledBatches(counting(5), 1, 4, Rng{}).next().targets) == std::vector<int32_t>{1, 2, 3, 4});
  CHECK_SAYS_OF(value, ShuffledBatches(counting(4), 1, 4, Rng{}),
                "[data] count has 4 tokens, but a context of 4 needs at least 5.");
  const auto parts = counting(20).split(0.9);
  CHECK_SAYS_OF(value, ShuffledBatches(parts.val, 1, 4, Rng{}), "[data] the validation part of count has 2 tokens");
  CHECK_SAYS_OF(value, ShuffledBatches(parts.train, 1, 18, Rng{}), "[data] the training part of count has 18 tokens");
  CHECK_SAYS_OF(value, ShuffledBatches(counting(4), 1, INT64_MAX, Rng{}), "needs at least 9223372036854775808.");
  CHECK_SAYS_OF(value, ShuffledBatches(counting(4), 0, 2, Rng{}), "[data] batch 0 and context 2. Both must be");
  CHECK_SAYS_OF(value, ShuffledBatches(counting(4), 2, 0, Rng{}), "[data] batch 2 and context 0");
}

TEST_CASE("data: windows make every token but the first a target once, in order") {
  for (const int64_t n : {2, 3, 5, 12, 13, 14, 24, 25, 26, 40}) {
    for (const int64_t batch : {1, 2, 3, 100}) {
      constexpr int64_t kContext = 4;
      SequentialBatches windows(counting(n), batch, kContext);
      CHECK(windows.targets() == n - 1);
      std::vector<int32_t> seen;
      Batch b;
      int64_t calls = 0;
      for (bool last = false; const auto next = windows.at(calls); ++calls) {
        b = *next;
        CHECK(!last);  // the last batch may be short
        CHECK(b.inputs.shape() == b.targets.shape());
        CHECK(b.inputs.size(0) <= batch);
        last = b.inputs.size(1) < kContext;
        const auto x = token_values(b.inputs), y = token_values(b.targets);
        for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == x[i] + 1);
        seen.insert(seen.end(), y.begin(), y.end());
      }
      CHECK(seen == all_of(counting(n - 1, 1)));
      const int64_t full = (n - 1) / kContext;
      CHECK(calls == (full + batch - 1) / batch + ((n - 1) % kContext != 0));
      CHECK(!windows.at(calls + 1));
      CHECK(token_values(windows.at(calls - 1)->inputs) == token_values(b.inputs));  // any order
    }
  }
  CHECK_SAYS_OF(value, SequentialBatches(counting(1), 1, 4), "[data] count has 1 token. At least 2 are needed");
  CHECK_SAYS_OF(value, SequentialBatches(counting(5).split(1).val, 1, 4), "the validation part of count has 0 tokens.");
  CHECK_SAYS_OF(value, SequentialBatches(counting(9), 0, 4), "[data] batch 0 and context 4");
}
