#include <tapegrad/models/data/code_points.h>
#include <tapegrad/models/data/unicode_table.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace tg::detail {
namespace {

// The letters of the table in a class.
constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
    {"Lu", "U"},      {"Ll", "L"}, {"Lt", "T"}, {"Lm", "Mm"},         {"Lo", "Oo"},
    {"L", "ULTMmOo"}, {"M", "Cc"}, {"Nd", "D"}, {"Nl", "Rr"},         {"No", "N"},
    {"N", "DRrN"},    {"P", "Pp"}, {"S", "Ss"}, {"White_Space", "_"}, {"Han", "mocrps"}};

CodeSet set_of(std::string_view letters) {
  CodeSet::Ranges ranges;
  char32_t begin = 0, length = 0;
  for (const char c : kUnicodeRuns) {
    if (c >= '0' && c <= '9') {
      length = 10 * length + char32_t(c - '0');
      continue;
    }
    const char32_t end = begin + std::max<char32_t>(length, 1);
    if (letters.find(c) != letters.npos) ranges.emplace_back(begin, end - 1);
    begin = end, length = 0;
  }
  return CodeSet(std::move(ranges));
}

}  // namespace

CodeSet::CodeSet(Ranges all) {
  std::sort(all.begin(), all.end());
  for (const auto& r : all) {
    if (!ranges_.empty() && r.first <= ranges_.back().second + 1)
      ranges_.back().second = std::max(ranges_.back().second, r.second);
    else
      ranges_.push_back(r);
  }
}
CodeSet CodeSet::inverse() const {
  CodeSet set;
  char32_t from = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > from) set.ranges_.emplace_back(from, first - 1);
    from = last + 1;
  }
  if (from < kCodePoints) set.ranges_.emplace_back(from, kCodePoints - 1);
  return set;
}
bool CodeSet::has(char32_t c) const {
  const auto after = std::ranges::upper_bound(ranges_, c, {}, &Ranges::value_type::first);
  return after != ranges_.begin() && std::prev(after)->second >= c;
}

const CodeSet* unicode_class(std::string_view name) {
  static const std::map<std::string_view, CodeSet> sets = [] {
    std::map<std::string_view, CodeSet> all;
    for (const auto& [known, letters] : kClasses) all.emplace(known, set_of(letters));
    return all;
  }();
  const auto found = sets.find(name);
  return found == sets.end() ? nullptr : &found->second;
}

}  // namespace tg::detail
