#include <tapegrad/models/config/glob.h>

#include <algorithm>

namespace tg {

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

}  // namespace tg
