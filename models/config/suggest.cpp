#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace tg {
namespace {
// Optimal string alignment distance in three rows.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}
}  // namespace

bool glob_matches(std::string_view pattern, std::string_view name) {
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, n = 0, star = kNone, begin = 0;  // last star, start of its match
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, begin = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != kNone) {
      p = star + 1, n = begin + 1;  // the star takes one more
      begin = n;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}
std::string block_pattern(std::string_view name) {
  std::string s;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    s.append(begin ? "." : "").append(number ? "*" : part);
    begin = end + 1;
  }
  return s;
}

std::string nearest(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  size_t best_distance = 0;
  for (std::string_view k : known) {
    const size_t d = distance(word, k);
    if (d > std::max<size_t>(1, std::max(word.size(), k.size()) / 3)) continue;
    if (best.empty() || d < best_distance) best = k, best_distance = d;
  }
  return std::string(best);
}
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : " Did you mean '" + near + "'?";
}
size_t known_place(std::string_view what, std::string_view word, std::span<const std::string_view> known) {
  const size_t i = size_t(std::find(known.begin(), known.end(), word) - known.begin());
  TG_CHECK(i < known.size(), value, "[{}] '{}' is not known.{} The names are {}.", what, word,
           did_you_mean(word, known), listed(known));
  return i;
}
std::string listed(std::span<const std::string_view> words) { return fmt::format("{}", fmt::join(words, ", ")); }

}  // namespace tg
