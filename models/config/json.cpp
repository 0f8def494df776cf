#include <tapegrad/core/error.h>
#include <tapegrad/models/config/json.h>

#include <set>
#include <vector>

namespace tg {

Json parse_json(std::string_view text, std::string_view op, const std::string& source) {
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

Json own_json(std::string_view text) { return Json::parse(text); }

std::string text_of(const Json& x, int indent) { return x.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace tg
