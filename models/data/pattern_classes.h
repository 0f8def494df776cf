// The character classes of a pattern. Internal.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern_tree.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::detail {

inline constexpr uint8_t kNoClass = 63;  // of an invalid UTF-8 byte
inline constexpr uint32_t kBlock = 128;

// Code points that all sets treat alike form a class: a byte per character of a text, a bit in the mask of a set.
class CharacterClasses {
 public:
  explicit CharacterClasses(const PatternNode& root) {
    collect(root);
    number();
  }
  uint64_t mask(const CodeSet& set) const {
    return masks_[size_t(std::find(sets_.begin(), sets_.end(), set) - sets_.begin())];
  }
  void translate(std::string_view text, std::string& to) const {
    to.resize(text.size());
    size_t n = 0;
    for (size_t at = 0; at < text.size();) {
      const auto byte = uint8_t(text[at]);
      if (byte < kBlock) {
        to[n++] = char(blocks_[byte]);  // the first block is ASCII
        ++at;
        continue;
      }
      const Utf8 c = first_of(text.substr(at));
      to[n++] = char(c.length ? blocks_[block_of_[c.code / kBlock] * kBlock + c.code % kBlock] : kNoClass);
      at += std::max<size_t>(c.length, 1);
    }
    to.resize(n);
  }

 private:
  void collect(const PatternNode& node) {
    if (node.kind == PatternNode::Kind::set && std::find(sets_.begin(), sets_.end(), node.set) == sets_.end())
      sets_.push_back(node.set);
    for (const PatternNode& kid : node.kids) collect(kid);
  }
  void number() {
    std::vector<char32_t> begins{0, kCodePoints};
    for (const CodeSet& set : sets_)
      for (const auto& [first, last] : set.ranges()) begins.insert(begins.end(), {first, last + 1});
    std::sort(begins.begin(), begins.end());
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    masks_.resize(sets_.size());
    std::map<std::vector<bool>, uint8_t> known;
    std::string all(kCodePoints, '\0');
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      std::vector<bool> in;
      for (const CodeSet& set : sets_) in.push_back(set.has(begins[i]));
      const auto [entry, is_new] = known.emplace(in, uint8_t(known.size()));
      TG_CHECK(known.size() < kNoClass, value,
               "[pattern] the pattern tells more than 62 kinds of characters apart. Make it simpler.");
      if (is_new)
        for (size_t s = 0; s < sets_.size(); ++s) masks_[s] |= uint64_t(in[s]) << entry->second;
      std::fill(all.begin() + ptrdiff_t(begins[i]), all.begin() + ptrdiff_t(begins[i + 1]), char(entry->second));
    }
    std::map<std::string_view, uint16_t> blocks;
    std::string_view block;
    for (uint32_t at = 0; at < kCodePoints; at += kBlock) {
      const std::string_view before = std::exchange(block, std::string_view(all).substr(at, kBlock));
      if (block == before) {  // most are
        block_of_.push_back(block_of_.back());
        continue;
      }
      const auto [entry, is_new] = blocks.emplace(block, uint16_t(blocks.size()));
      if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
      block_of_.push_back(entry->second);
    }
  }

  std::vector<CodeSet> sets_;
  std::vector<uint64_t> masks_;
  std::vector<uint8_t> blocks_;
  std::vector<uint16_t> block_of_;
};

}  // namespace tg::detail
