// The joins of byte pair encoding: from a piece of text to ids. Internal to models/data.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::detail {

// The rank of the merge of two ids, and the id that it makes.
class MergeTable {
 public:
  static constexpr uint32_t kNone = uint32_t(-1);
  static constexpr size_t kMost = (1 << 24) - 1;  // merges, as ranks have 24 bits of a slot, and ids 20

  explicit MergeTable(size_t merges = 0);
  void set(int32_t left, int32_t right, uint32_t rank, int32_t id);  // the last of equal pairs counts
  uint32_t rank_of(int32_t left, int32_t right) const;               // kNone: they do not merge
  int32_t id_of(uint32_t rank) const { return ids_[rank]; }

 private:
  size_t slot_of(uint64_t pair) const;
  std::vector<uint64_t> filter_;  // a bit of each pair that is there, four for each slot: most are not
  std::vector<uint64_t> slots_;   // left, right, rank
  std::vector<int32_t> ids_;      // by rank
  int shift_;
};

// A piece as PieceTable looks for it. The two words and the size tell pieces of up to 16 bytes apart; `first` of longer
// ones is a hash.
struct PieceKey {
  static constexpr size_t kWhole = 16;
  PieceKey() = default;
  explicit PieceKey(std::string_view);
  static uint64_t hash_of(uint64_t first, uint64_t second, size_t bytes);
  std::string_view piece;
  uint64_t first = 0, second = 0, hash = 0;
};

// Ids of pieces of text.
class PieceTable {
 public:
  // Appends the ids of a piece; false: it has none.
  bool find(const PieceKey&, std::vector<int32_t>& to) const;
  void keep(const PieceKey&, std::span<const int32_t> ids);  // of a piece that has none, is not empty and below 4 GB
  void prefetch(const PieceKey& key) const { __builtin_prefetch(&slots_[key.hash >> shift_]); }
  size_t size() const { return used_; }
  void clear() { *this = PieceTable(); }

 private:
  struct Slot {
    uint64_t first = 0, second = 0;  // of a key; of long pieces, where the text begins
    uint32_t bytes = 0;              // 0: the slot is free
    uint32_t id = 0;                 // or kMany and the place in ids_ of the number of ids, which follow it
  };
  static constexpr uint32_t kMany = 1u << 31;
  size_t slot_of(const PieceKey&) const;
  void grow();
  std::vector<Slot> slots_{std::vector<Slot>(64)};
  int shift_ = 58;
  size_t used_ = 0;
  std::string texts_;
  std::vector<int32_t> ids_;
};

// Joins ids by the merge of lowest rank again and again, the leftmost of equals. It has the lowest of each 16 ranks,
// the lowest of each 16 of those, and so on.
class Joiner {
 public:
  void begin(size_t n);                                               // of so many ids, whose ranks come next
  void put(size_t at, uint32_t rank) { lowest_[at] = of(at, rank); }  // of the merge of an id with the next one
  size_t join(const MergeTable&, std::span<int32_t> ids);             // to how many ids

 private:
  static uint64_t of(size_t at, uint32_t rank) {
    return rank == MergeTable::kNone ? ~uint64_t(0) : uint64_t(rank) << 32 | at;
  }
  void set(size_t at, uint32_t rank);
  std::vector<uint64_t> lowest_;         // the rank << 32 and its place
  std::vector<size_t> levels_;           // where they begin in lowest_
  std::vector<uint32_t> next_, before_;  // of ids that are left
};

// What one thread keeps from piece to piece.
struct BpeMemory {
  PieceTable known;  // pieces that came before
  Joiner joiner;
  std::array<PieceKey, 32> keys;
};

// A vocabulary and its merges.
struct BpeModel {
  PieceTable whole;  // pieces that are a token, by their text; of a byte-level model by their bytes
  MergeTable merges;
  bool byte_level = false, ignore_merges = false, byte_fallback = false, fuse_unknown = false;
  int32_t unknown = -1;                // -1: none
  std::vector<int32_t> byte_ids{};     // 256 of byte-level and byte fallback; -1: the byte has no token
  std::vector<uint32_t> byte_pairs{};  // ranks of their merges, if the model is byte-level and all bytes have tokens

  // Makes byte_pairs; then add() takes each token and its text, characters before longer ones. A token that merges do
  // not make of its characters is no piece's, unless merges are ignored.
  void look_at_bytes();
  void add(std::string_view text, int32_t id, Joiner&);
  // Appends the ids of some pieces. An Error for a character that has none, when there is no unknown token.
  void encode(std::span<const std::string_view> pieces, BpeMemory&, std::vector<int32_t>& to) const;

 private:
  // The first place from `at` on that no token stands across, so that both sides have the ids that they have together;
  // the end of the piece if there is none.
  size_t split_from(std::string_view piece, size_t at) const;
  void first_ids(std::string_view piece, std::vector<int32_t>& to) const;
  void join_characters(std::string_view piece, Joiner&, std::vector<int32_t>& to) const;
  std::vector<bool> within_{std::vector<bool>(1 << 16)};  // pairs of bytes that stand in any token
};

}  // namespace tg::detail
