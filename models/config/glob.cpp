#include <tapegrad/models/config/glob.h>

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

}  // namespace tg
