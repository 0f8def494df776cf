#include <tapegrad/core/check.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace tg::detail {
namespace {
constexpr uint32_t kNone = MergeTable::kNone;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, for hashing

constexpr uint64_t kNothing = ~uint64_t(0);

uint64_t lowest_of(const uint64_t* values) {
  uint64_t a = values[0], b = values[1];
  for (size_t i = 2; i < 16; i += 2) a = std::min(a, values[i]), b = std::min(b, values[i + 1]);
  return std::min(a, b);
}
}  // namespace

MergeTable::MergeTable(size_t merges)
    : filter_(std::bit_ceil(2 * merges + 32) / 16), slots_(16 * filter_.size(), kNothing), ids_(merges) {
  shift_ = 64 - std::countr_zero(slots_.size());
}
size_t MergeTable::slot_of(uint64_t pair) const {
  size_t at = size_t(pair * kGolden >> shift_);
  while (slots_[at] != kNothing && slots_[at] >> 24 != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}
void MergeTable::set(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const uint64_t pair = uint64_t(left) << 20 | uint64_t(right);
  const uint64_t bit = pair * kGolden >> (shift_ - 2);
  filter_[bit / 64] |= uint64_t(1) << bit % 64;
  slots_[slot_of(pair)] = pair << 24 | rank;
  ids_[rank] = id;
}
uint32_t MergeTable::rank_of(int32_t left, int32_t right) const {
  const uint64_t pair = uint64_t(left) << 20 | uint64_t(right), bit = pair * kGolden >> (shift_ - 2);
  if (!(filter_[bit / 64] >> bit % 64 & 1)) return kNone;
  const uint64_t found = slots_[slot_of(pair)];
  if (found == kNothing) return kNone;
  __builtin_prefetch(&ids_[found & kMost]);
  return uint32_t(found & kMost);
}

void Joiner::begin(size_t n) {
  levels_.clear();
  size_t all = 0;
  for (size_t size = n; levels_.empty() || size > 1; size = (size + 15) / 16) {
    levels_.push_back(all);
    all += (size + 15) / 16 * 16;
  }
  lowest_.assign(all, kNothing);
  next_.resize(n + 1);
  before_.resize(n + 1);
  for (uint32_t i = 0; i <= n; ++i) next_[i] = i + 1, before_[i] = i - 1;
}
void Joiner::set(size_t place, uint32_t rank) {
  uint64_t now = of(place, rank);
  uint64_t before = std::exchange(lowest_[place], now);
  for (size_t level = 1; level < levels_.size(); ++level) {
    const size_t block = levels_[level - 1] + place / 16 * 16;
    place /= 16;
    uint64_t& up = lowest_[levels_[level] + place];
    if (now > up && before != up) return;  // neither was nor is lowest
    if (now > up) now = lowest_of(&lowest_[block]);
    before = std::exchange(up, now);
  }
}
size_t Joiner::join(const MergeTable& merges, std::span<int32_t> ids) {
  for (size_t level = 1; level < levels_.size(); ++level)
    for (size_t at = levels_[level - 1], up = levels_[level]; at < levels_[level]; at += 16)
      lowest_[up++] = lowest_of(&lowest_[at]);
  while (true) {
    const uint64_t lowest = lowest_of(&lowest_[levels_.back()]);
    if (lowest == kNothing) break;
    const auto at = uint32_t(lowest);
    const uint32_t right = next_[at], after = next_[right], before = before_[at];
    const int32_t id = ids[at] = merges.id_of(uint32_t(lowest >> 32));
    next_[at] = after;
    before_[after] = at;
    // Both lookups first: memory latency dominates.
    const uint32_t with_after = after < ids.size() ? merges.rank_of(id, ids[after]) : kNone;
    const uint32_t with_before = at > 0 ? merges.rank_of(ids[before], id) : kNone;
    set(right, kNone);
    set(at, with_after);
    if (at > 0) set(before, with_before);
  }
  size_t left = 0;
  for (size_t at = 0; at < ids.size(); at = next_[at]) ids[left++] = ids[at];
  return left;
}

PreTokenKey::PreTokenKey(std::string_view text) : pre_token(text) {
  const auto word = [&]<class T>(T zero, size_t at) {
    std::memcpy(&zero, text.data() + at, sizeof(T));
    return uint64_t(zero);
  };
  const size_t n = text.size();
  if (n > kWhole) {
    for (size_t at = 0; at + 8 < n; at += 8) {
      first = (first ^ word(uint64_t(0), at)) * kGolden;
      first ^= first >> 32;
    }
    first = (first ^ word(uint64_t(0), n - 8)) * kGolden;
  } else if (n >= 8) {
    first = word(uint64_t(0), 0), second = word(uint64_t(0), n - 8);
  } else if (n >= 4) {
    first = word(uint32_t(0), 0), second = word(uint32_t(0), n - 4);
  } else if (n > 0) {
    first = word(uint8_t(0), 0) | word(uint8_t(0), n / 2) << 8 | word(uint8_t(0), n - 1) << 16;
  }
  hash = hash_of(first, second, n);
}
uint64_t PreTokenKey::hash_of(uint64_t first, uint64_t second, size_t bytes) {
  const uint64_t hash = (first ^ std::rotl(second * kGolden, 32) ^ bytes) * kGolden;
  return (hash ^ hash >> 32) * kGolden;
}

size_t PreTokenTable::slot_of(const PreTokenKey& key) const {
  const size_t n = key.pre_token.size();
  const auto is_it = [&](const Slot& s) {
    if (s.bytes != n || s.first != key.first) return false;
    return n <= PreTokenKey::kWhole ? s.second == key.second
                                    : std::memcmp(texts_.data() + s.second, key.pre_token.data(), n) == 0;
  };
  size_t at = size_t(key.hash >> shift_);
  while (slots_[at].bytes != 0 && !is_it(slots_[at])) at = (at + 1) & (slots_.size() - 1);
  return at;
}
bool PreTokenTable::find(const PreTokenKey& key, std::vector<int32_t>& to) const {
  const Slot& s = slots_[slot_of(key)];
  if (s.bytes == 0) return false;
  if (s.id < kMany) {  // most pre-tokens are one token
    to.push_back(int32_t(s.id));
  } else {
    const auto list = ids_.begin() + (s.id - kMany);
    to.insert(to.end(), list + 1, list + 1 + *list);
  }
  return true;
}
void PreTokenTable::keep(const PreTokenKey& key, std::span<const int32_t> ids) {
  if (2 * ++used_ > slots_.size()) grow();
  const size_t n = key.pre_token.size();
  Slot s{key.first, key.second, uint32_t(n), 0};
  if (n > PreTokenKey::kWhole) {
    s.second = texts_.size();
    texts_ += key.pre_token;
  }
  if (ids.size() == 1) {
    s.id = uint32_t(ids[0]);
  } else {
    s.id = kMany | uint32_t(ids_.size());
    ids_.push_back(int32_t(ids.size()));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  slots_[slot_of(key)] = s;
}
void PreTokenTable::grow() {
  std::vector<Slot> before(2 * slots_.size());
  std::swap(before, slots_);
  --shift_;
  for (const Slot& s : before) {
    if (s.bytes == 0) continue;
    auto at = size_t(PreTokenKey::hash_of(s.first, s.bytes > PreTokenKey::kWhole ? 0 : s.second, s.bytes) >> shift_);
    while (slots_[at].bytes != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = s;
  }
}

void BpeModel::join_characters(std::string_view pre_token, Joiner& joiner, std::vector<int32_t>& to) const {
  const size_t begin = to.size();
  if (byte_pairs.empty()) {
    first_ids(pre_token, to);
  } else {
    for (const char byte : pre_token) to.push_back(byte_ids[uint8_t(byte)]);
  }
  const std::span<int32_t> ids = std::span(to).subspan(begin);
  joiner.begin(ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i)
    joiner.put(i, byte_pairs.empty() ? merges.rank_of(ids[i], ids[i + 1])
                                     : byte_pairs[size_t(uint8_t(pre_token[i])) << 8 | uint8_t(pre_token[i + 1])]);
  to.resize(begin + joiner.join(merges, ids));
}
void BpeModel::first_ids(std::string_view pre_token, std::vector<int32_t>& to) const {
  bool known = true;
  for (size_t at = 0, length; at < pre_token.size(); at += length) {
    length = byte_level ? 1 : std::max<size_t>(first_of(pre_token.substr(at)).length, 1);
    const std::string_view character = pre_token.substr(at, length);
    const bool after_unknown = !std::exchange(known, true);
    if (!byte_level && whole.find(PreTokenKey(character), to)) continue;
    const auto id_of_byte = [&](char byte) { return byte_ids[uint8_t(byte)]; };
    known = (byte_level || byte_fallback) &&
            std::ranges::all_of(character, [&](char byte) { return id_of_byte(byte) >= 0; });
    if (known) {
      for (const char byte : character) to.push_back(id_of_byte(byte));
      continue;
    }
    TG_CHECK(unknown >= 0, value,
             "[tokenizer] the vocabulary has no token for the byte {:#04x}, and no unknown token. Use a text without "
             "it, or a model with another tokenizer.",
             uint8_t(character[0]));
    if (!after_unknown || !fuse_unknown) to.push_back(unknown);
  }
}

void BpeModel::look_at_bytes() {
  if (!byte_level || std::ranges::find(byte_ids, -1) != byte_ids.end()) return;
  byte_pairs.resize(1 << 16);
  for (size_t i = 0; i < byte_pairs.size(); ++i) byte_pairs[i] = merges.rank_of(byte_ids[i >> 8], byte_ids[i & 255]);
}
void BpeModel::add(std::string_view text, int32_t id, Joiner& joiner) {
  if (text.empty()) return;
  for (size_t i = 1; i < text.size(); ++i) within_[size_t(uint8_t(text[i - 1])) << 8 | uint8_t(text[i])] = true;
  // Merged byte tokens have other text than their names: no split is safe.
  if (!byte_level && text.size() != 6 && text.find("<0x") != text.npos) within_.assign(within_.size(), true);
  const bool is_character = !byte_level && first_of(text).length == text.size();
  if (!ignore_merges && !is_character) {
    if (byte_pairs.empty()) return;
    std::vector<int32_t> ids;
    join_characters(text, joiner, ids);
    if (ids != std::vector{id}) return;
  }
  whole.keep(PreTokenKey(text), {&id, 1});
}

size_t BpeModel::split_from(std::string_view pre_token, size_t at) const {
  const bool all_known = byte_fallback && std::ranges::find(byte_ids, -1) == byte_ids.end();
  if (fuse_unknown && !all_known) return pre_token.size();  // adjacent unknown ones fuse
  for (; at < pre_token.size(); ++at) {
    const bool inside = !byte_level && (uint8_t(pre_token[at]) & 0xC0) == 0x80;
    if (!inside && !within_[size_t(uint8_t(pre_token[at - 1])) << 8 | uint8_t(pre_token[at])]) return at;
  }
  return pre_token.size();
}

void BpeModel::encode(std::span<const std::string_view> pre_tokens, BpeMemory& memory, std::vector<int32_t>& to) const {
  constexpr size_t kLongest = 64, kMost = 1 << 16;  // bytes worth caching; cache entries
  constexpr size_t kPart = 1 << 14;                 // bytes merged at once
  auto& keys = memory.keys;
  for (; !pre_tokens.empty(); pre_tokens = pre_tokens.subspan(std::min(pre_tokens.size(), keys.size()))) {
    const size_t n = std::min(pre_tokens.size(), keys.size());
    for (size_t i = 0; i < n; ++i) {
      keys[i] = PreTokenKey(pre_tokens[i]);
      memory.known.prefetch(keys[i]);
      whole.prefetch(keys[i]);
    }
    for (const PreTokenKey& key : std::span(keys).first(n)) {
      if (memory.known.find(key, to)) continue;
      const size_t begin = to.size();
      if (!whole.find(key, to)) {
        // Merging needs 20 bytes per byte: splits long pre-tokens.
        std::string_view rest = key.pre_token;
        for (size_t end; rest.size() > kPart; rest.remove_prefix(end))
          join_characters(rest.substr(0, end = split_from(rest, kPart)), memory.joiner, to);
        if (!rest.empty()) join_characters(rest, memory.joiner, to);
      }
      if (key.pre_token.size() > kLongest) continue;
      if (memory.known.size() == kMost) memory.known.clear();
      memory.known.keep(key, std::span(to).subspan(begin));
    }
  }
}

}  // namespace tg::detail
