// Json: a JSON value with ordered keys. A plain type: only json.cpp compiles the JSON library's slow templates.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tg {

template <class Value> struct JsonMember {
  std::string key;
  Value value;
  bool operator==(const JsonMember&) const = default;
};

class Json {
 public:
  using Member = JsonMember<Json>;
  using List = std::vector<Json>;
  using Members = std::vector<Member>;  // keys and values of an object

  Json() = default;  // null
  Json(std::nullptr_t) {}
  template <std::integral T> Json(T x) {
    if constexpr (std::same_as<T, bool>)
      value_ = x;
    else
      value_ = std::conditional_t<std::signed_integral<T>, int64_t, uint64_t>(x);
  }
  Json(double x) : value_(x) {}
  Json(std::string x) : value_(std::move(x)) {}
  Json(std::string_view x) : Json(std::string(x)) {}
  Json(const char* x) : Json(std::string(x)) {}
  template <class T>
    requires std::constructible_from<Json, const T&>
  Json(const std::vector<T>& list) : value_(List(list.begin(), list.end())) {}
  template <class T> Json(const std::map<std::string, T>& members) : value_(Members()) {
    for (const auto& [key, x] : members) std::get<Members>(value_).push_back({key, x});
  }
  // An object if each element is a list of a string and a value, {{"step", 1}, {"loss", 2.5}}; else an array.
  Json(std::initializer_list<Json>);
  static Json array(std::initializer_list<Json> list = {}) { return List(list); }
  static Json object() { return std::map<std::string, Json>(); }

  bool is_null() const { return is<std::nullptr_t>(); }
  bool is_boolean() const { return is<bool>(); }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_number_integer() const { return is<int64_t>() || is_number_unsigned(); }
  bool is_number_unsigned() const { return is<uint64_t>(); }  // parsed integers >= 0
  bool is_number_float() const { return is<double>(); }
  bool is_string() const { return is<std::string>(); }
  bool is_array() const { return is<List>(); }
  bool is_object() const { return is<Members>(); }
  bool is_blank() const;          // null or empty
  const char* type_name() const;  // "number", "object"

  // T is bool, an integer, a floating-point number, std::string or a std::vector of these. Truncates fractions. An
  // Error out of range or for another type.
  template <class T> T get() const {
    if constexpr (std::same_as<T, bool>) {
      return as<bool>("boolean");
    } else if constexpr (std::integral<T>) {
      return T(integer(int64_t(std::numeric_limits<T>::min()), uint64_t(std::numeric_limits<T>::max())));
    } else if constexpr (std::floating_point<T>) {
      return T(number());
    } else if constexpr (std::same_as<T, std::string>) {
      return as<std::string>("string");
    } else {
      T list;
      for (const Json& x : as<List>("array")) list.push_back(x.get<typename T::value_type>());
      return list;
    }
  }

  std::string text() const { return is_string() ? get<std::string>() : ""; }
  size_t size() const { return is_object() ? items().size() : list().size(); }
  bool empty() const { return size() == 0; }
  // Elements or members' values; an Error if missing. Non-const: null becomes an object, a missing key is added.
  // Additions invalidate references.
  const Json& at(std::string_view key) const;
  const Json& at(size_t i) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& operator[](size_t i) const { return at(i); }
  Json& operator[](std::string_view key);
  Json& operator[](size_t i) { return const_cast<Json&>(at(i)); }
  const Json* find(std::string_view key) const;
  const Json& member(std::string_view key) const;  // or null
  bool contains(std::string_view key) const { return find(key); }
  void erase(std::string_view key);
  Json& push_back(Json);
  List::const_iterator begin() const { return list().begin(); }  // array elements, else none
  List::const_iterator end() const { return list().end(); }
  const Members& items() const { return as<Members>("object"); }

  bool operator==(const Json&) const;  // 1 == 1.0; the order of keys counts

 private:
  template <class T> bool is() const { return std::holds_alternative<T>(value_); }
  template <class T> const T& as(std::string_view name) const {
    if (!is<T>()) fail_type(name);
    return std::get<T>(value_);
  }
  const List& list() const;                              // empty if not an array
  uint64_t integer(int64_t least, uint64_t most) const;  // empty for other types
  long double number() const;                            // holds every 64-bit integer exactly
  [[noreturn]] void fail_type(std::string_view wanted) const;

  friend struct JsonText;
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, List, Members> value_;
};
namespace detail {
// Parses text from outside. The JSON library keeps the last of equal keys and accepts any nesting; this throws an Error
// for invalid JSON, nesting deeper than `depth`, and repeated keys. Messages begin with `op`; `source` names the text.
Json parse_json(std::string_view text, std::string_view op, const std::string& source, size_t depth = 6);
// For text that tapegrad wrote. Invalid JSON, or nesting deeper than 64, is an Error or null.
Json own_json(std::string_view text);
Json json_or_null(std::string_view text);
// On one line, or one field per line, indented by `indent` spaces. Invalid UTF-8, which paths may have, becomes U+FFFD.
std::string text_of(const Json&, int indent = -1, bool ascii = false);
}  // namespace detail
std::ostream& operator<<(std::ostream&, const Json&);

}  // namespace tg
