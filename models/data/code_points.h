// Sets of code points, and Unicode classes. Internal.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::detail {

inline constexpr char32_t kCodePoints = 0x110000;

// Code points as sorted ranges that do not touch.
class CodeSet {
 public:
  using Ranges = std::vector<std::pair<char32_t, char32_t>>;  // inclusive ends
  CodeSet() = default;
  CodeSet(char32_t first, char32_t last) : ranges_{{first, last}} {}
  explicit CodeSet(Ranges);  // in any order
  CodeSet inverse() const;
  bool has(char32_t) const;
  bool operator==(const CodeSet&) const = default;
  const Ranges& ranges() const { return ranges_; }

 private:
  Ranges ranges_;
};

// The class L, M, N, P, S, Lu Ll Lt Lm Lo Nd Nl No, Han or White_Space, otherwise null.
const CodeSet* unicode_class(std::string_view name);

}  // namespace tg::detail
