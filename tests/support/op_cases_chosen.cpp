// Op cases chosen by TG_CASES and TG_CASES_THIRD.
#include <tapegrad/core/check.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "support/op_cases.h"

namespace tg {
bool every_op_case() { return !std::getenv("TG_CASES") && !std::getenv("TG_CASES_THIRD"); }

void keep_chosen(std::vector<OpCase>& list, bool usual_sizes) {
  if (const char* third = std::getenv("TG_CASES_THIRD")) {
    const std::string_view k = third;
    TG_CHECK(k == "0" || k == "1" || k == "2", value, "[tests] TG_CASES_THIRD is '{}'. It must be 0, 1 or 2.", k);
    int ops = -1;
    std::string last;
    std::erase_if(list, [&](const OpCase& c) {
      if (c.op != last) last = c.op, ++ops;
      return ops % 3 != k[0] - '0';
    });
  }
  const char* given = std::getenv("TG_CASES");
  if (!given) return;
  std::vector<std::string> words;
  std::stringstream s(given);
  for (std::string w; std::getline(s, w, ',');) words.push_back(w);
  std::erase_if(list, [&](const OpCase& c) {
    return std::ranges::none_of(words, [name = c.name()](const std::string& w) { return name.find(w) != name.npos; });
  });
  TG_CHECK(!list.empty() || !usual_sizes, value, "[tests] TG_CASES is '{}', and no case has a word of it in its name.",
           given);
}
}  // namespace tg
