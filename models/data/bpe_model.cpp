#include <tapegrad/core/check.h>
#include <tapegrad/models/data/bpe_model.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>

namespace tg::detail {
namespace {
constexpr uint32_t kNone = MergeTable::kNone;

// The merge of lowest rank again and again, the leftmost of equals: a scan, for few symbols.
void join_few(const MergeTable& merges, std::vector<int32_t>& ids) {
  std::vector<MergeTable::Merge> pairs(ids.size());  // pairs[i]: of ids[i] and ids[i + 1]
  const auto look = [&](size_t i) { pairs[i] = merges.find(ids[i], ids[i + 1]); };
  for (size_t i = 0; i + 1 < ids.size(); ++i) look(i);
  while (ids.size() > 1) {
    const auto lowest =
        std::min_element(pairs.begin(), pairs.end() - 1, [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (lowest->rank == kNone) return;
    const auto at = size_t(lowest - pairs.begin());
    ids[at] = lowest->id;
    ids.erase(ids.begin() + ptrdiff_t(at + 1));
    pairs.erase(pairs.begin() + ptrdiff_t(at));
    if (at + 1 < ids.size()) look(at);
    if (at > 0) look(at - 1);
  }
}

// The same with a queue of merges, for many symbols: a list of those that are left, and entries that may be out of
// date.
class LongPiece {
 public:
  LongPiece(const MergeTable& merges, std::vector<int32_t>& ids) : merges_(merges), ids_(ids) {
    for (uint32_t i = 0; i < ids.size(); ++i) {
      next_.push_back(i + 1);
      before_.push_back(i - 1);
    }
    for (uint32_t i = 0; i + 1 < ids.size(); ++i) look(i);
  }
  void join() {
    while (!open_.empty()) {
      const Entry e = open_.top();
      open_.pop();
      const uint32_t right = next_[e.at];
      if (right >= ids_.size() || ids_[e.at] != e.left || ids_[right] != e.right) continue;
      ids_[e.at] = e.id;
      ids_[right] = kGone;
      next_[e.at] = next_[right];
      if (next_[e.at] < ids_.size()) before_[next_[e.at]] = e.at;
      look(e.at);
      if (before_[e.at] < ids_.size()) look(before_[e.at]);
    }
    std::erase(ids_, kGone);
  }

 private:
  static constexpr int32_t kGone = -1;
  struct Entry {
    uint32_t rank, at;
    int32_t left, right, id;
    bool operator<(const Entry& o) const { return std::tie(rank, at) > std::tie(o.rank, o.at); }
  };
  void look(uint32_t at) {
    const uint32_t right = next_[at];
    if (right >= ids_.size()) return;
    const MergeTable::Merge m = merges_.find(ids_[at], ids_[right]);
    if (m.rank != kNone) open_.push({m.rank, at, ids_[at], ids_[right], m.id});
  }
  const MergeTable& merges_;
  std::vector<int32_t>& ids_;
  std::vector<uint32_t> next_, before_;
  std::priority_queue<Entry> open_;
};

void join(const MergeTable& merges, std::vector<int32_t>& ids) {
  constexpr size_t kFew = 32;
  if (ids.size() < kFew)
    join_few(merges, ids);
  else
    LongPiece(merges, ids).join();
}
}  // namespace

MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(2 * merges + 2)) {
  shift_ = 64 - std::countr_zero(slots_.size());
}
size_t MergeTable::slot_of(uint64_t key) const {
  size_t at = size_t(key * 0x9E3779B97F4A7C15u >> shift_);
  while (slots_[at].merge.rank != kNone && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  return at;
}
void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, merge};
}
MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(key_of(left, right))].merge;
}

namespace {
uint64_t hash_of(std::string_view text) {
  uint64_t hash = text.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  };
  uint64_t word = 0;
  for (; text.size() >= sizeof word; text.remove_prefix(sizeof word)) {
    std::memcpy(&word, text.data(), sizeof word);
    mix(word);
  }
  word = 0;
  for (const char c : text) word = word << 8 | uint8_t(c);
  mix(word);
  return hash;
}
}  // namespace

size_t PieceCache::slot_of(uint64_t hash, std::string_view piece) const {
  const auto is_it = [&](const Slot& s) {
    return s.hash == hash && s.bytes == piece.size() && std::memcmp(&texts_[s.text], piece.data(), s.bytes) == 0;
  };
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].bytes != 0 && !is_it(slots_[at])) at = (at + 1) & (slots_.size() - 1);
  return at;
}
bool PieceCache::find(std::string_view piece, std::vector<int32_t>& to) {
  const Slot& s = slots_[slot_of(hash_of(piece), piece)];
  if (s.bytes == 0) return false;
  const auto first = ids_.begin() + s.ids;
  if (s.id_count == 1)
    to.push_back(*first);  // most pieces
  else
    to.insert(to.end(), first, first + s.id_count);
  return true;
}
void PieceCache::keep(std::string_view piece, std::span<const int32_t> ids) {
  if (2 * used_ >= slots_.size()) grow();
  const uint64_t hash = hash_of(piece);
  slots_[slot_of(hash, piece)] = {hash, uint32_t(texts_.size()), uint32_t(ids_.size()), uint16_t(piece.size()),
                                  uint16_t(ids.size())};
  texts_ += piece;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}
void PieceCache::grow() {
  constexpr size_t kMost = 1 << 17;
  std::vector<Slot> before(std::min(2 * slots_.size(), kMost));
  std::swap(before, slots_);
  if (before.size() == kMost) {
    used_ = 0;
    texts_.clear();
    ids_.clear();
    return;
  }
  for (const Slot& s : before)
    if (s.bytes != 0) slots_[slot_of(s.hash, std::string_view(texts_).substr(s.text, s.bytes))] = s;
}

void BpeModel::first_ids(std::string_view piece, std::vector<int32_t>& to) const {
  bool after_unknown = false;
  const auto put_unknown = [&](std::string_view character) {
    TG_CHECK(
        unknown >= 0, value,
        "[tokenizer] the vocabulary has no token for the byte {:#04x}, and none for what is unknown. The text must "
        "have other characters, or the model another tokenizer.",
        uint8_t(character[0]));
    if (!after_unknown || !fuse_unknown) to.push_back(unknown);
    after_unknown = true;
  };
  const auto put = [&](int32_t id) {
    to.push_back(id);
    after_unknown = false;
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t length = byte_level ? 1 : std::max<size_t>(first_of(piece.substr(at)).length, 1);
    const std::string_view character = piece.substr(at, length);
    at += length;
    const auto id_of_byte = [&](char byte) { return byte_ids[uint8_t(byte)]; };
    if (byte_level) {
      const int32_t id = id_of_byte(character[0]);
      id >= 0 ? put(id) : put_unknown(character);
    } else if (const auto found = ids.find(character); found != ids.end()) {
      put(found->second);
    } else if (byte_fallback &&
               std::all_of(character.begin(), character.end(), [&](char b) { return id_of_byte(b) >= 0; })) {
      for (const char b : character) put(id_of_byte(b));
    } else {
      put_unknown(character);
    }
  }
}

void BpeModel::encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& to) const {
  const bool brief = piece.size() <= PieceCache::kLongest;
  if (piece.empty() || (brief && cache.find(piece, to))) return;
  std::vector<int32_t> found;
  const auto whole = ignore_merges ? ids.find(piece) : ids.end();
  if (whole != ids.end()) {
    found.push_back(whole->second);
  } else {
    first_ids(piece, found);
    join(merges, found);
  }
  to.insert(to.end(), found.begin(), found.end());
  if (brief) cache.keep(piece, found);
}

}  // namespace tg::detail
