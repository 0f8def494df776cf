// Reading JSON that somebody wrote: the one door to the parser for files of models and runs, which would otherwise keep
// the last of two equal keys and follow any depth of nesting. Included by .cpp files only.
#pragma once
#include <tapegrad/core/error.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

using Json = nlohmann::ordered_json;

// `op` opens messages, `source` names the text in them. An Error when it is no JSON, is nested more than six deep, or
// holds a key twice in one object.
inline Json parse_json(std::string_view text, std::string_view op, const std::string& source) {
  constexpr int kDepth = 6;
  std::vector<std::set<std::string>> keys(kDepth);
  const auto watch = [&](int depth, Json::parse_event_t event, Json& x) {
    TG_CHECK(depth < kDepth, value, "[{}] {} is nested too deeply. It must be objects of plain values.", op, source);
    if (event == Json::parse_event_t::object_start) keys[size_t(depth)].clear();
    if (event == Json::parse_event_t::key)
      TG_CHECK(keys[size_t(depth) - 1].insert(x.get<std::string>()).second, value,
               "[{}] {}: '{}' comes twice. Each key stands once.", op, source, x.get<std::string>());
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& e) {
    detail::fail(Error::Kind::value, fmt::format("[{}] {} is not JSON: {}.", op, source, e.what()));
  }
}

}  // namespace tg
