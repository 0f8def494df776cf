// Parts of a BPE tokenizer: before merges (special tokens, normalisation, pre-tokens), merges, and a parsed
// tokenizer.json.
#pragma once
#include <tapegrad/models/tokenizers/regex.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace tg {
class Json;
namespace detail {

// Limit of bytes made of a text, against hostile files.
constexpr size_t most_bytes(size_t text) { return text * 16 + 4096; }

struct Nfc {};
struct Prepend {
  std::string text;
};
struct Replace {
  std::string from, to;                                      // `from` is not empty
  std::string of(std::string_view text, size_t most) const;  // an Error above `most` bytes
};
using Normalization = std::variant<Nfc, Prepend, Replace>;
std::string normalized(const std::vector<Normalization>&, std::string_view text);

struct Split {
  enum class Matches { alone, removed, with_previous, with_next };
  std::variant<std::string, Regex> at{};
  Matches matches = Matches::alone;
  bool invert = false;  // swaps matches with the rest
};
struct ByteLevel {
  bool prefix_space = false;  // prefix for pre-tokens without leading space
  std::optional<Split> split{};
};
struct Metaspace {
  std::string mark{};  // replaces spaces
  enum class Prepend { never, first, always } prepend = Prepend::never;
  std::optional<Split> split{};
};
using Cut = std::variant<ByteLevel, Split, Metaspace>;
// A pattern that only splits around matches, else null.
const Regex* plain_pattern(const Cut&);
using TakePreTokens = std::function<void(std::span<const std::string_view> pre_tokens)>;
// Calls `take` with batches of pre-tokens. `begins`: starts a document.
void cut(const std::vector<Cut>&, std::string_view text, bool begins, const TakePreTokens&);
// The first offset after `from` whose split keeps pre-tokens, or the size.
size_t part_end(const std::vector<Cut>&, std::string_view text, size_t from);

// A token found in the text.
struct AddedToken {
  std::string content{};
  int32_t id = 0;
  bool special = false, left_strip = false, right_strip = false, single_word = false, normalized = false;
};
// Finds added tokens: leftmost, then longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken>);
  // Parts of a text; plain text has null. Special tokens are plain unless parse_special.
  using Take = std::function<void(size_t begin, size_t end, const AddedToken* token)>;
  void find(std::string_view text, bool parse_special, const Take&) const;

 private:
  const AddedToken* at(std::string_view text) const;  // longest token at the front of the text
  struct Group {                                      // tokens with one first byte
    std::string prefix{};                             // common prefix
    uint32_t begin = 0, end = 0;                      // range of tokens_
  };
  std::vector<AddedToken> tokens_;  // sorted by content
  // Longest proper prefix token of each, or -1.
  std::vector<int32_t> shorter_;
  std::array<Group, 256> by_first_byte_;
  std::array<bool, 256> begins_one_{};
};

// Pair of ids -> rank and id of its merge.
class MergeTable {
 public:
  static constexpr uint32_t kNone = uint32_t(-1);
  static constexpr size_t kMost = (1 << 24) - 1;  // a slot has 24 bits of rank and 20 of each id

  explicit MergeTable(size_t merges = 0);
  void set(int32_t left, int32_t right, uint32_t rank, int32_t id);  // the last of equal pairs wins
  uint32_t rank_of(int32_t left, int32_t right) const;               // kNone: no merge
  int32_t id_of(uint32_t rank) const { return ids_[rank]; }

 private:
  size_t slot_of(uint64_t pair) const;
  std::vector<uint64_t> filter_;  // Bloom filter, 4 bits per slot; most pairs miss
  std::vector<uint64_t> slots_;   // left, right, rank
  std::vector<int32_t> ids_;      // indexed by rank
  int shift_;
};

// Key of PreTokenTable. Up to 16 bytes in both words; longer ones have a hash in `first`.
struct PreTokenKey {
  static constexpr size_t kWhole = 16;
  PreTokenKey() = default;
  explicit PreTokenKey(std::string_view);
  static uint64_t hash_of(uint64_t first, uint64_t second, size_t bytes);
  std::string_view pre_token;
  uint64_t first = 0, second = 0, hash = 0;
};

class PreTokenTable {
 public:
  // Appends ids, or false.
  bool find(const PreTokenKey&, std::vector<int32_t>& to) const;
  void keep(const PreTokenKey&, std::span<const int32_t> ids);  // new, not empty, below 4 GB
  void prefetch(const PreTokenKey& key) const { __builtin_prefetch(&slots_[key.hash >> shift_]); }
  size_t size() const { return used_; }
  void clear() { *this = PreTokenTable(); }

 private:
  struct Slot {
    uint64_t first = 0, second = 0;  // key; long ones: offset in texts_
    uint32_t bytes = 0;              // 0: the slot is free
    // The id, or kMany plus the offset in ids_ of a count and ids.
    uint32_t id = 0;
  };
  static constexpr uint32_t kMany = 1u << 31;
  size_t slot_of(const PreTokenKey&) const;
  void grow();
  std::vector<Slot> slots_{std::vector<Slot>(64)};
  int shift_ = 58;
  size_t used_ = 0;
  std::string texts_;
  std::vector<int32_t> ids_;
};

// Merges lowest rank first, leftmost, with a tree of minima over groups of 16.
class Joiner {
 public:
  void begin(size_t n);                                               // n ids; then put() their ranks
  void put(size_t at, uint32_t rank) { lowest_[at] = of(at, rank); }  // rank of an id and the next
  size_t join(const MergeTable&, std::span<int32_t> ids);             // returns the ids' count

 private:
  static uint64_t of(size_t at, uint32_t rank) {
    return rank == MergeTable::kNone ? ~uint64_t(0) : uint64_t(rank) << 32 | at;
  }
  void set(size_t at, uint32_t rank);
  std::vector<uint64_t> lowest_;         // rank << 32 | position
  std::vector<size_t> levels_;           // offsets in lowest_
  std::vector<uint32_t> next_, before_;  // linked list of remaining ids
};

// encode()'s per-thread state.
struct BpeMemory {
  PreTokenTable known;  // earlier pre-tokens
  Joiner joiner;
  std::array<PreTokenKey, 32> keys;
};

// A vocabulary and its merges.
struct BpeModel {
  PreTokenTable whole;  // pre-tokens of one token, as text (byte-level: bytes)
  MergeTable merges;
  bool byte_level = false, ignore_merges = false, byte_fallback = false, fuse_unknown = false;
  int32_t unknown = -1;             // -1: none
  std::vector<int32_t> byte_ids{};  // 256 for byte-level and fallback; -1: no token
  // Byte pairs' merge ranks, if byte-level with all byte tokens.
  std::vector<uint32_t> byte_pairs{};

  // Makes byte_pairs; then add() all tokens, characters first. Tokens that merges cannot make are unused unless merges
  // are ignored.
  void look_at_bytes();
  void add(std::string_view text, int32_t id, Joiner&);
  // Appends ids. An Error for an unknown character without an unknown token.
  void encode(std::span<const std::string_view> pre_tokens, BpeMemory&, std::vector<int32_t>& to) const;

 private:
  // The first position from `at` on that no token crosses, or the end: both sides encode separately.
  size_t split_from(std::string_view pre_token, size_t at) const;
  void first_ids(std::string_view pre_token, std::vector<int32_t>& to) const;
  void join_characters(std::string_view pre_token, Joiner&, std::vector<int32_t>& to) const;
  std::vector<bool> within_{std::vector<bool>(1 << 16)};  // byte pairs inside any token
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

struct BpeParts {
  BpeModel model;
  std::vector<Normalization> normalizer;
  std::vector<Cut> cuts;
  AddedTokens added, added_normalized;  // tokens in the text, the normalised text
  std::vector<int32_t> before, after;   // special tokens around a text
  int32_t end_of_text = -1;             // BpeTokenizer::end_of_text()
  int64_t plain_size = 0;               // BpeTokenizer::plain_vocab_size()
  TokenIds names;                       // ids of tokens as spelled in the file
  std::vector<std::string> texts;       // decoded text by id
  std::string leading;                  // removed from a decoded text's front
  std::string json;                     // BpeTokenizer::to_json()

  int32_t id_of(std::string_view token) const {  // -1: none
    const auto found = names.find(token);
    return found == names.end() ? -1 : found->second;
  }
};

// An Error names `source` and the path.
BpeParts read_bpe(const Json&, const std::string& source);

// Byte-level characters of bytes; printable ones stay.
const std::array<char32_t, 256>& byte_characters();
// A byte-level token's bytes, or false.
bool bytes_of(std::string_view token, std::string& to);
std::string as_characters(std::string_view bytes);
// An empty pattern does not split.
Json byte_level_json(Json vocabulary, Json merges, std::string_view pattern, bool ignore_merges);
Json added_token(std::string_view content, const Json& id, bool special);

inline constexpr std::string_view kDigitPattern = R"(\p{N})", kDigitsPattern = R"(\p{N}+)";
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                                                   R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// gpt2, llama3 or qwen2; else empty.
std::string_view pattern_named(std::string_view name);

}  // namespace detail
}  // namespace tg
