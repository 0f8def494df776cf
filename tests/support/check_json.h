// Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/io/json.h>

namespace tg {

// The members of objects in `want` are compared: check_json(j, R"({"a": [{"b": 1}]})").
inline void check_json(const Json& got, const Json& want, const std::string& path) {
  CAPTURE(path);
  if (want.is_object()) {
    for (const auto& [key, x] : want.items()) check_json(got.at(key), x, path + "." + key);
  } else if (want.is_array()) {
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < want.size(); ++i) check_json(got[i], want[i], path + "." + std::to_string(i));
  } else {
    CHECK(got == want);
  }
}
inline void check_json(const Json& got, const char* want) { check_json(got, detail::own_json(want), ""); }

}  // namespace tg
