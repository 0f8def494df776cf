// The joins of byte pair encoding: from a piece of text to ids. Internal to models/data.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tg::detail {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// The rank and the result of the merge of two ids.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    int32_t id = -1;
  };
  static constexpr uint32_t kNone = uint32_t(-1);

  explicit MergeTable(size_t merges = 0);
  void set(int32_t left, int32_t right, Merge);  // the last of equal pairs counts
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = ~uint64_t(0);
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  int shift_ = 63;
};

// Ids of pieces that came before. For one thread; it forgets all when it is full.
class PieceCache {
 public:
  static constexpr size_t kLongest = 64;  // bytes of a piece that is worth a place

  // Appends the ids of a piece; false: it is not known.
  bool find(std::string_view piece, std::vector<int32_t>& to);
  void keep(std::string_view piece, std::span<const int32_t> ids);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t text = 0, ids = 0;        // where they begin
    uint16_t bytes = 0, id_count = 0;  // bytes 0: the slot is free
  };
  size_t slot_of(uint64_t hash, std::string_view piece) const;
  void grow();
  std::vector<Slot> slots_{std::vector<Slot>(256)};
  size_t used_ = 0;
  std::string texts_;
  std::vector<int32_t> ids_;
};

// A vocabulary and its merges.
struct BpeModel {
  TokenIds ids;  // of tokens by their text; of a byte-level model by their bytes, where they have some
  MergeTable merges;
  bool byte_level = false, ignore_merges = false, byte_fallback = false, fuse_unknown = false;
  int32_t unknown = -1;             // -1: none
  std::vector<int32_t> byte_ids{};  // 256 of byte-level and byte fallback; -1: the byte has no token

  // Appends the ids of a piece. An Error for a character that has none, when there is no unknown token.
  void encode(std::string_view piece, PieceCache&, std::vector<int32_t>& to) const;

 private:
  void first_ids(std::string_view piece, std::vector<int32_t>& to) const;
};

}  // namespace tg::detail
