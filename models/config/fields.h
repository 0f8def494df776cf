// JSON values of configuration fields. For .cpp files only.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/suggest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace tg {

struct FieldName {
  std::string_view op, key;  // op starts messages
};
inline void expect_field(bool ok, const FieldName& f, const Json& x, std::string_view rule) {
  TG_CHECK(ok, value, "[{}] '{}' is {}. It must be {}.", f.op, f.key, detail::text_of(x), rule);
}
// null is absent.
inline const Json* find_value(const Json& object, std::string_view key) {
  const Json* x = object.find(key);
  return x && !x->is_null() ? x : nullptr;
}
template <class T> std::string range_of() {
  return fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
}

namespace detail {
// Calls f(). Its Errors get a last line more(error), unless that is "".
template <class F, class More> auto explained(F f, More more) {
  try {
    return f();
  } catch (const Error& e) {
    const std::string line = more(e);
    if (line.empty()) throw;
    throw Error(e.kind(), fmt::format("{}\n{}", e.what(), line), e.scoped());
  }
}
}  // namespace detail
template <class F> auto in_file(const std::string& path, F f) {
  return detail::explained(f, [&](const Error& e) {
    return std::string_view(e.what()).find(path) == std::string_view::npos ? "    in " + path : "";
  });
}

// An Error for a key outside of `known`. `source` names the text, `place` its object.
inline void check_keys(std::string_view op, const std::string& source, const Json& object,
                       std::span<const std::string_view> known, const std::string& place = "") {
  for (const auto& [key, x] : object.items())
    TG_CHECK(std::ranges::find(known, key) != known.end(), value, "[{}] {}{}'{}' is not known{}.{} The keys are {}.",
             op, source, source.empty() ? "" : ": ", key, place, detail::did_you_mean(key, known),
             detail::listed(known));
}

// An Error for a wrong type or range leaves `to` unchanged.
template <class T> void read_field(const FieldName& f, const Json& x, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    expect_field(x.is_boolean(), f, x, "true or false");
  } else if constexpr (std::is_integral_v<T>) {
    const bool whole = x.is_number_integer() || (x.is_number() && std::abs(x.get<double>()) >= 0x1p63);
    expect_field(whole, f, x, "an integer");
    const bool fits = x.is_number_unsigned() ? std::in_range<T>(x.get<uint64_t>())
                                             : x.is_number_integer() && std::in_range<T>(x.get<int64_t>());
    expect_field(fits, f, x, range_of<T>());
  } else if constexpr (std::is_same_v<T, double>) {
    expect_field(x.is_number(), f, x, "a number");
  } else if constexpr (std::is_same_v<T, std::string>) {
    expect_field(x.is_string(), f, x, "a text in quotes");
  } else {
    static_assert(std::is_same_v<T, std::vector<std::string>>);
    expect_field(x.is_array() && std::ranges::all_of(x, [](const Json& name) { return name.is_string(); }), f, x,
                 "a list of names in quotes");
  }
  to = x.get<T>();
}
// Enums have name_of() and from_name().
template <class T>
  requires std::is_enum_v<T>
void read_field(const FieldName& f, const Json& x, T& to) {
  expect_field(x.is_string(), f, x, "a name in quotes");
  from_name(x.get<std::string>(), to);
}
template <class T> using Patterns = std::vector<std::pair<std::string, T>>;
template <class T> void read_field(const FieldName& f, const Json& x, Patterns<T>& to) {
  expect_field(x.is_object(), f, x, "an object from patterns to numbers");
  to.clear();
  for (const auto& [key, value] : x.items()) read_field({f.op, key}, value, to.emplace_back(key, T()).second);
}
// Unset is null.
template <class T> void read_field(const FieldName& f, const Json& x, std::optional<T>& to) {
  if (x.is_null()) return to.reset();
  T value{};
  read_field(f, x, value);
  to = value;
}
template <class T> Json written(const std::optional<T>& x) { return x ? Json(name_of(*x)) : Json(); }
template <class T> Json written(const Patterns<T>& x) {
  Json all = Json::object();
  for (const auto& [key, value] : x) all[key] = value;
  return all;
}
template <class T> Json written(const T& x) {
  if constexpr (std::is_enum_v<T>)
    return name_of(x);
  else
    return x;
}

}  // namespace tg
