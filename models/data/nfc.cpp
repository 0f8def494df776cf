#include <tapegrad/models/data/nfc.h>
#include <tapegrad/models/data/nfc_table.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

namespace tg::detail {
namespace {

// Syllables of Hangul are made of two or three letters by a formula (The Unicode Standard, section 3.12).
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28, kSyllables = kLeads * kVowels * kTrails;

struct Tables {
  std::unordered_map<char32_t, std::span<const uint32_t>> parts;
  std::unordered_map<uint64_t, char32_t> together;
  std::unordered_map<char32_t, uint8_t> classes;
  // Whether NFC of a character is another, or it may join those before it. No character from 0x30000 on does.
  std::vector<bool> changes{std::vector<bool>(0x30000)};
  Tables() {
    for (size_t i = 0; i < std::size(kDecompositions); i += 2 + kDecompositions[i + 1])
      parts[kDecompositions[i]] = std::span(kDecompositions).subspan(i + 2, kDecompositions[i + 1]);
    for (const auto& [first, second, both] : kCompositions) together[uint64_t(first) << 32 | second] = both;
    for (const uint32_t x : kCombiningClasses) classes[x >> 8] = uint8_t(x & 0xFF);
    for (const auto& [c, list] : parts) changes[c] = true;
    for (const auto& [first, second, both] : kCompositions) changes[both] = false;
    for (const auto& [first, second, both] : kCompositions) changes[second] = true;
    for (const auto& [c, order] : classes) changes[c] = true;
    std::fill_n(changes.begin() + kVowel, kVowels, true);
    std::fill_n(changes.begin() + kTrail, kTrails, true);
  }
};
const Tables& tables() {
  static const Tables all;
  return all;
}

struct Character {
  char32_t code;
  uint8_t order;  // its combining class: marks of different classes are sorted by it
};

class Text {
 public:
  void add(char32_t c) {
    if (c >= kSyllable && c < kSyllable + kSyllables) {
      const char32_t i = c - kSyllable;
      put(kLead + i / (kVowels * kTrails));
      put(kVowel + i % (kVowels * kTrails) / kTrails);
      if (i % kTrails != 0) put(kTrail + i % kTrails);
    } else if (const auto found = tables().parts.find(c); found != tables().parts.end()) {
      for (const uint32_t part : found->second) put(part);
    } else {
      put(c);
    }
  }
  // Appends what was added, composed.
  void flush(std::string& to) {
    sort();
    for (const Character& c : composed()) append_utf8(to, c.code);
    all_.clear();
  }

 private:
  void put(char32_t c) {
    const auto found = c < 0x300 ? tables().classes.end() : tables().classes.find(c);
    all_.push_back({c, found == tables().classes.end() ? uint8_t(0) : found->second});
  }
  void sort() {
    for (auto begin = all_.begin(); begin != all_.end();) {
      const auto end = std::find_if(begin, all_.end(), [](const Character& c) { return c.order == 0; });
      std::stable_sort(begin, end, [](const Character& a, const Character& b) { return a.order < b.order; });
      begin = end == all_.end() ? end : end + 1;
    }
  }
  static char32_t join(char32_t a, char32_t b) {  // 0: they stay apart
    if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels)
      return kSyllable + ((a - kLead) * kVowels + b - kVowel) * kTrails;
    const bool open = a >= kSyllable && a < kSyllable + kSyllables && (a - kSyllable) % kTrails == 0;
    if (open && b > kTrail && b < kTrail + kTrails) return a + b - kTrail;
    const auto found = tables().together.find(uint64_t(a) << 32 | b);
    return found == tables().together.end() ? 0 : found->second;
  }
  std::vector<Character> composed() const {
    std::vector<Character> out;
    size_t base = size_t(-1);  // the last character of class 0
    for (const Character& c : all_) {
      const bool next_to_it = base + 1 == out.size();
      if (base != size_t(-1) && (next_to_it || out.back().order < c.order)) {
        if (const char32_t both = join(out[base].code, c.code)) {
          out[base].code = both;
          continue;
        }
      }
      if (c.order == 0) base = out.size();
      out.push_back(c);
    }
    return out;
  }
  std::vector<Character> all_;
};

}  // namespace

std::string nfc(std::string_view text) {
  const std::vector<bool>& changes = tables().changes;
  std::string to;
  Text part;
  size_t done = 0,
         from = 0;  // what is in `to`; where a part would begin: the last character that stays, which may join
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0x80) {
      from = at++;
      continue;
    }
    Utf8 c = first_of(text.substr(at));
    const auto changing = [&] { return c.length > 0 && c.code < changes.size() && changes[c.code]; };
    if (!changing()) {
      at += std::max<size_t>(c.length, 1);
      from = c.length > 0 ? at - c.length : at;  // no part goes over what is no character
      continue;
    }
    to += text.substr(done, from - done);
    if (from < at) part.add(first_of(text.substr(from)).code);
    do {
      part.add(c.code);
      at += c.length;
      c = at < text.size() ? first_of(text.substr(at)) : Utf8();
    } while (changing());
    part.flush(to);
    done = from = at;
  }
  return to += text.substr(done);
}

}  // namespace tg::detail
