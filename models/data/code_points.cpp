#include <tapegrad/models/data/code_points.h>
#include <tapegrad/models/data/unicode_table.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

namespace tg::detail {
namespace {

// A class as a predicate on table values.
struct Class {
  std::string_view name;
  uint32_t categories;  // bit i: category i of the table
  uint32_t flag;        // or this bit of the value
  bool has(uint32_t value) const { return (categories >> (value & 15) & 1) != 0 || (value & flag) != 0; }
};
constexpr Class kClasses[] = {{"Lu", 1 << 1, 0}, {"Ll", 1 << 2, 0},      {"Lt", 1 << 3, 0}, {"Lm", 1 << 4, 0},
                              {"Lo", 1 << 5, 0}, {"L", 0x3E, 0},         {"M", 1 << 6, 0},  {"Nd", 1 << 7, 0},
                              {"Nl", 1 << 8, 0}, {"No", 1 << 9, 0},      {"N", 7 << 7, 0},  {"P", 1 << 10, 0},
                              {"S", 1 << 11, 0}, {"White_Space", 0, 16}, {"Han", 0, 32}};

CodeSet set_of(const Class& c) {
  CodeSet::Ranges ranges;
  char32_t begin = 0;
  for (const uint32_t run : kUnicodeRuns) {
    const char32_t end = begin + (run >> 6);
    if (c.has(run & 63)) ranges.emplace_back(begin, end - 1);
    begin = end;
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
void CodeSet::add(const CodeSet& o) {
  Ranges all(ranges_);
  all.insert(all.end(), o.ranges_.begin(), o.ranges_.end());
  *this = CodeSet(std::move(all));
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
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                                      [](char32_t x, const auto& range) { return x < range.first; });
  return after != ranges_.begin() && std::prev(after)->second >= c;
}

const CodeSet* unicode_class(std::string_view name) {
  static const std::map<std::string, CodeSet, std::less<>> sets = [] {
    std::map<std::string, CodeSet, std::less<>> all;
    for (const Class& c : kClasses) all.emplace(c.name, set_of(c));
    return all;
  }();
  const auto found = sets.find(name);
  return found == sets.end() ? nullptr : &found->second;
}

}  // namespace tg::detail
