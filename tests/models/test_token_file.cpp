// models/data/token_file.h, and TokenData over several files: formats of others, sequences of shards, mixtures.
#include "support/files.h"
#include "support/helpers.h"
#include "support/limit.h"

#include <tapegrad/tapegrad.h>

#include <cstring>
#include <filesystem>
#include <numeric>

namespace {
using namespace tg;
using FileIds = std::vector<int32_t>;
namespace fs = std::filesystem;

FileIds ids_of(const TokenData& d) {
  FileIds ids(size_t(d.size()));
  d.copy(0, ids);
  return ids;
}
template <class T> std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}
// As llm.c's write_datafile() does.
std::string llmc(std::initializer_list<int32_t> head, const std::string& ids) {
  std::string file = bytes_of(head);
  file.resize(1024);
  return file + ids;
}
std::string npy(std::string_view type, int count, const std::string& ids) {
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}\n", type, count);
  return std::string("\x93NUMPY\1\0", 8) + char(dict.size()) + '\0' + dict + ids;
}
TokenData range(int64_t begin, int64_t end, const std::string& name = "the data") {
  std::vector<int64_t> ids(size_t(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return TokenData::from_tokens(ids, name);
}
}  // namespace

TEST_CASE("token files: those of llm.c and of NumPy are known by their content") {
  const Folder f;
  const auto read = [&](const char* name, std::string_view content, TokenType raw = TokenType::u16) {
    detail::write_file_atomically(f / name, content);
    return ids_of(TokenData::from_file(f / name, raw));
  };
  const std::string narrow = bytes_of<uint16_t>({7, 65535, 1}), wide = bytes_of<uint32_t>({7, 70000, INT32_MAX});
  CHECK(read("a.bin", llmc({20240520, 1, 3}, narrow)) == FileIds{7, 65535, 1});
  CHECK(read("a.bin", llmc({20240801, 7, 3}, wide)) == FileIds{7, 70000, INT32_MAX});
  CHECK(read("a.bin", narrow) == FileIds{7, 65535, 1});
  CHECK(read("a.bin", wide, TokenType::u32) == FileIds{7, 70000, INT32_MAX});
  CHECK(read("a.bin", npy("<u2", 3, narrow)) == FileIds{7, 65535, 1});
  CHECK(read("a.npy", npy("|u1", 3, "\1\2\xff")) == FileIds{1, 2, 255});
  CHECK(read("a.npy", npy("<i4", 2, bytes_of({70000, 3}))) == FileIds{70000, 3});
  CHECK(read("a.npy", npy("<i8", 2, bytes_of<int64_t>({INT32_MAX, 3}))) == FileIds{INT32_MAX, 3});
  CHECK_SAYS_OF(value, read("a.npy", npy("<i8", 2, bytes_of<int64_t>({3, 1LL << 31}))),
                "token 2147483648 at position 1 of " + f / "a.npy" + " does not fit");
  CHECK_SAYS_OF(value, read("a.npy", npy("<i4", 2, bytes_of({3, -1}))), "token -1 at position 1 of ");

  const auto refused = [&](const std::string& content) {
    return error_of(Error::Kind::io, [&] { read("a.bin", content); });
  };
  CHECK_HAS(refused(llmc({20240520, 1, 4}, narrow)),
            "has 6 bytes after its header, which says that it has 4 tokens of 2");
  CHECK_HAS(refused(llmc({20240520, 1, 2}, narrow)), "says that it has 2 tokens");
  CHECK_HAS(refused(llmc({20240520, 1, 3}, wide)), "has 12 bytes after its header");
  CHECK_HAS(refused(llmc({20240520, 2, 3}, narrow)),
            "version 2 and 3 tokens. The header has 1024 bytes, and the version");
  CHECK_HAS(refused(llmc({20240801, 7, -1}, wide)), "-1 tokens");
  CHECK_HAS(refused(llmc({20240801, 7, 0}, "")), "has no tokens");
  CHECK_HAS(refused(bytes_of({20240520, 1, 3})), "has 12 bytes, version 1");
  CHECK_HAS(refused(npy(">u2", 3, narrow)), "holds {'descr':'>u2'");
  CHECK_HAS(refused(narrow + "x"), "A token file without a header has 2 bytes for each token");
  CHECK_SAYS_OF(io, read("a.bin", narrow, TokenType::u32), "has 4 bytes for each token");
  CHECK_SAYS_OF(io, read("a.npy", narrow), "does not begin as a file of NumPy");
}

TEST_CASE("token files: each format is written as it is read") {
  const Folder f;
  for (const int64_t end : {int64_t(70'000), int64_t(300)}) {
    const TokenData data = range(0, end);
    for (const TokenFormat format : {TokenFormat::npy, TokenFormat::llmc, TokenFormat::raw}) {
      if (format == TokenFormat::raw && end > 65536) {
        CHECK_SAYS_OF(value, data.write(f / "a.bin", format), "has tokens of 4 bytes");
        continue;
      }
      data.write(f / "a.bin", format);
      CHECK(ids_of(TokenData::from_file(f / "a.bin")) == ids_of(data));
    }
  }
}

TEST_CASE("token files: several are one sequence, in any cut of it") {
  const Folder f;
  std::vector<TokenData> parts;
  int64_t at = 0;
  for (const int64_t n : {5, 1, 300, 2, 70}) {
    const TokenData part = range(at, at + n);
    part.write(f / fmt::format("{}.npy", n));
    parts.push_back(at % 2 ? part : TokenData::from_file(f / fmt::format("{}.npy", n)));
    at += n;
  }
  const TokenData joined = TokenData::join(parts, "all"), whole = range(0, at);
  CHECK(joined.name() == "all");
  CHECK(joined.size() == at);
  Rng rng{3};
  for (int i = 0; i < 200; ++i) {
    const auto begin = int64_t(rng.below(uint64_t(at))), end = begin + int64_t(rng.below(uint64_t(at - begin + 1)));
    CHECK(ids_of(joined.slice(begin, end)) == ids_of(whole.slice(begin, end)));
    const auto a = joined.slice(begin, end).split(0.7), b = whole.slice(begin, end).split(0.7);
    CHECK(ids_of(a.train) == ids_of(b.train));
    CHECK(ids_of(a.val) == ids_of(b.val));
  }
  ShuffledBatches one(whole, 3, 16, Rng{1}), some(joined, 3, 16, Rng{1});
  for (int i = 0; i < 20; ++i) CHECK(one.next().inputs.to_vector<int32_t>() == some.next().inputs.to_vector<int32_t>());
  joined.write(f / "again.npy");
  CHECK(ids_of(TokenData::from_file(f / "again.npy")) == ids_of(whole));
  CHECK_SAYS_OF(value, joined.check_vocabulary(306), "token 306 at position 306 of all");
  fs::resize_file(f / "70.npy", 3);
  CHECK_SAYS(joined.check_unchanged(), "70.npy");
}

TEST_CASE("mixtures: windows are drawn by weight, inside groups, and resume exactly") {
  const TokenData a = range(0, 40, "a"), b = range(1000, 1400, "b"), c = range(5000, 5100, "c");
  const std::vector<TokenData> groups{a, b, c};
  const std::vector<double> weights{3, 1, 4};
  const TokenData mixed = TokenData::mix(groups, weights);
  const auto parts = mixed.split(0.5);
  CHECK(parts.train.size() == 20 + 200 + 50);
  CHECK(ids_of(parts.val) ==
        ids_of(TokenData::join(std::vector{a.slice(20, 40), b.slice(200, 400), c.slice(50, 100)})));
  ShuffledBatches batches(mixed, 1, 8, Rng{5});
  std::array<int, 3> drawn{};
  constexpr int kDraws = 4000;
  Rng saved{};
  FileIds next;
  for (int i = 0; i < kDraws; ++i) {
    const Batch batch = batches.next();
    const auto x = batch.inputs.to_vector<int32_t>(), y = batch.targets.to_vector<int32_t>();
    for (size_t k = 0; k < x.size(); ++k) CHECK(y[k] == x[k] + 1);  // never across groups
    ++drawn[x[0] < 40 ? 0 : x[0] < 1400 ? 1 : 2];
    if (i == 99) saved = batches.rng();
    if (i == 100) next = x;
  }
  for (size_t g = 0; g < 3; ++g) {  // 4.5 standard deviations
    const double p = weights[g] / 8, deviation = std::sqrt(kDraws * p * (1 - p));
    CHECK(std::abs(drawn[g] - kDraws * p) < 4.5 * deviation);
  }
  ShuffledBatches again(mixed, 1, 8, saved);
  CHECK(again.next().inputs.to_vector<int32_t>() == next);

  const auto mixing = [&](std::vector<double> w) { return error_of([&] { TokenData::mix(groups, w); }); };
  CHECK_HAS(mixing({1, 2}), "2 weights for 3 groups of data");
  CHECK_HAS(mixing({1, 0, 1}), "the weight of b is 0. It must be finite and above 0");
  CHECK_HAS(mixing({1, 1, NAN}), "the weight of c is nan");
  CHECK_SAYS(ShuffledBatches(mixed, 1, 40, Rng{}), "a group of the data has 40 tokens, but a context of 40 needs");
  CHECK_SAYS(ShuffledBatches(mixed, 1, 8, Rng{}, SampleOrder::epochs), "order is epochs, and the data is a mixture");
  CHECK_SAYS(TokenData::join(std::vector{mixed, a}), "is a mixture");
}

TEST_CASE("token files: twenty gigabytes take no memory") {
  const Folder f;
  std::vector<TokenData> shards;
  for (int i = 0; i < 5; ++i) {
    const std::string path = f / fmt::format("{}.bin", i);
    detail::write_file_atomically(path, std::string_view("\1\0", 2));
    fs::resize_file(path, uintmax_t(4) << 30);
    shards.push_back(TokenData::from_file(path));
  }
  const TokenData all = TokenData::join(shards);
  CHECK(all.size() == int64_t(5) << 31);
  CHECK(all.bytes() == 0);
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  ShuffledBatches batches(all.split(0.9).train, 8, 1024, Rng{1});
  for (int i = 0; i < 100; ++i) CHECK(sum(batches.next().inputs).item<int64_t>() <= 1);
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 64 * 1024);  // KiB
}

TEST_CASE("token files: patterns name files, in order") {
  const Folder f;
  for (const char* name : {"b1.bin", "a2.bin", "a10.bin", "a[1].bin"}) detail::write_file_atomically(f / name, "ab");
  CHECK(detail::matching_files(f / "a*.bin") == std::vector<std::string>{f / "a10.bin", f / "a2.bin", f / "a[1].bin"});
  CHECK(detail::matching_files(f / "[b]?.bin") == std::vector<std::string>{f / "b1.bin"});
  CHECK(detail::matching_files(f / "a[1].bin") == std::vector<std::string>{f / "a[1].bin"});  // a file of this name
  CHECK(detail::matching_files(f / "none.bin") == std::vector<std::string>{f / "none.bin"});
  CHECK_SAYS_OF(io, detail::matching_files(f / "c*.bin"), "no file matches " + f / "c*.bin");
  detail::make_folder(f / "x[1]*");
  detail::write_file_atomically(f / "x[1]*/a.bin", "ab");
  const fs::path here = fs::current_path();
  fs::current_path(f / "x[1]*");
  const std::string pattern = detail::absolute_pattern("?.bin"), file = detail::absolute_pattern("a.bin");
  fs::current_path(here);
  CHECK(detail::matching_files(pattern) == std::vector<std::string>{f / "x[1]*/a.bin"});
  CHECK(detail::matching_files(file) == std::vector<std::string>{f / "x[1]*/a.bin"});
}

TEST_CASE("token files: those of another tokenizer are refused, as their meta.json says") {
  const Folder f;
  const ByteTokenizer bytes;
  const std::string spaced = R"({ "added_tokens": [], "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]} })";
  detail::write_file_atomically(f / "a.bin", "ab");
  const std::vector<TokenData> files{TokenData::from_file(f / "a.bin")};
  detail::check_shards(files, &bytes);
  detail::write_file_atomically(f / "meta.json", R"({"vocab_size": 65, "shards": 3})");  // file of another program
  detail::check_shards(files, &bytes);
  detail::write_file_atomically(f / "meta.json",
                                detail::text_of(Json{{"tokenizer_hash", detail::tokenizer_hash(bytes)}}));
  detail::check_shards(files, &bytes);
  detail::check_shards(files, nullptr);
  detail::check_shards(files, Tokenizer::from_json("{\n  \"type\": \"bytes\"\n}").get());
  CHECK(detail::tokenizer_hash(*Tokenizer::from_json(spaced)) ==
        detail::tokenizer_hash(*Tokenizer::from_json(detail::text_of(detail::own_json(spaced)))));
  const auto characters = CharTokenizer::from_text("ab");
  CHECK_SAYS_OF(value, detail::check_shards(files, &characters),
                "[data] " + f / "a.bin was written with another tokenizer, as " + f / "meta.json says");
}

TEST_CASE("token files: shards are those that their meta.json lists, as long as it says") {
  const Folder f;
  detail::write_file_atomically(f / "a.bin", "abcd");
  detail::write_file_atomically(f / "b.bin", "ab");
  const std::vector<TokenData> files{TokenData::from_file(f / "a.bin")};  // one of two shards
  const auto meta = [&](std::string_view text) { detail::write_file_atomically(f / "meta.json", text); };
  meta(R"({"shards": {"train": 1}})");  // file of another program
  detail::check_shards(files, nullptr);
  meta(R"({"tokenizer_hash": "1", "shards": {"a.bin": 2, "b.bin": 1}})");
  detail::check_shards(files, nullptr);
  fs::remove(f / "b.bin");
  CHECK_SAYS_OF(io, detail::check_shards(files, nullptr),
                "[data] " + f / "b.bin is missing, and " + f / "meta.json lists it");
  meta(R"({"tokenizer_hash": "1", "shards": {"a.bin": 3}})");
  CHECK_SAYS_OF(value, detail::check_shards(files, nullptr), f / "a.bin has 2 tokens, and " + f / "meta.json says 3.");
  for (const char* other : {"garbage", "", "[1]", "{", R"({"tokenizer_hash": 3, "shards": {"no.bin": 1}})",
                            R"({"tokenizer_hash": "1", "shards": {"../no.bin": 1, "/no.bin": 1, "x/no.bin": 1}})"}) {
    meta(other);
    detail::check_shards(files, nullptr);
  }
}

TEST_CASE("token files: more of them than the soft limit of open files") {
  const Folder f;
  const Limit low(RLIMIT_NOFILE, 100);
  std::vector<TokenData> shards;
  for (int i = 0; i < 200; ++i) {
    const std::string path = f / fmt::format("{}.bin", i);
    detail::write_file_atomically(path, "ab");
    shards.push_back(TokenData::from_file(path));
  }
  CHECK(ids_of(TokenData::join(shards)) == FileIds(200, 'a' + 256 * 'b'));
}
