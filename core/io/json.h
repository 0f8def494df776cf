// Json: a JSON value that keeps the order of its keys. It is a plain type, because the JSON library's templates take
// seconds to compile: only json.cpp includes them, to parse and print.
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
#include <vector>

namespace tg {

class Json {
 public:
  enum class Type : uint8_t { null, boolean, integer, unsigned_integer, number, string, array, object };
  struct Member;  // of an object

  Json() = default;  // null
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T> Json(T x) : type_(Type::boolean) { bits_.integer = x; }
  template <std::signed_integral T> Json(T x) : type_(Type::integer) { bits_.integer = x; }
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Json(T x) : type_(Type::unsigned_integer) {
    bits_.natural = x;
  }
  Json(double x) : type_(Type::number) { bits_.number = x; }
  Json(std::string);
  Json(std::string_view x) : Json(std::string(x)) {}
  Json(const char* x) : Json(std::string(x)) {}
  template <class T> Json(const std::vector<T>& list) : type_(Type::array) {
    for (const T& x : list) items_.push_back(Json(x));
  }
  template <class T> Json(const std::map<std::string, T>& members) : type_(Type::object) {
    for (const auto& [key, x] : members) keys_.push_back(key), items_.push_back(Json(x));
  }
  // An object if each element is a list of a string and a value, {{"step", 1}, {"loss", 2.5}}; else an array.
  Json(std::initializer_list<Json>);
  static Json array(std::initializer_list<Json> = {});
  static Json object() { return Json(Type::object); }

  bool is_null() const { return type_ == Type::null; }
  bool is_boolean() const { return type_ == Type::boolean; }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_number_integer() const { return type_ == Type::integer || is_number_unsigned(); }
  bool is_number_unsigned() const { return type_ == Type::unsigned_integer; }  // parsed integers >= 0 are
  bool is_number_float() const { return type_ == Type::number; }
  bool is_string() const { return type_ == Type::string; }
  bool is_array() const { return type_ == Type::array; }
  bool is_object() const { return type_ == Type::object; }
  const char* type_name() const;  // "number", "object"

  // T is bool, an integer, a floating-point number, std::string or a std::vector of these. Numbers are cast, and
  // fractions truncated. An Error for a number outside of the integer's range, or another type.
  template <class T> T get() const {
    if constexpr (std::same_as<T, bool>) {
      return boolean();
    } else if constexpr (std::integral<T>) {
      return T(integer(int64_t(std::numeric_limits<T>::min()), uint64_t(std::numeric_limits<T>::max())));
    } else if constexpr (std::floating_point<T>) {
      return T(number());
    } else if constexpr (std::same_as<T, std::string>) {
      return string();
    } else {
      T list;
      for (const Json& x : elements()) list.push_back(x.get<typename T::value_type>());
      return list;
    }
  }

  size_t size() const { return items_.size(); }  // of elements or members
  bool empty() const { return items_.empty(); }
  // Elements, or values of members; an Error for missing ones. Through a non-const Json, a null becomes an object, and
  // a missing key is added. References are valid until something is added.
  const Json& at(std::string_view key) const;
  const Json& at(size_t i) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& operator[](size_t i) const { return at(i); }
  Json& operator[](std::string_view key);
  Json& operator[](size_t i) { return const_cast<Json&>(at(i)); }
  const Json* find(std::string_view key) const;  // null if missing
  bool contains(std::string_view key) const { return find(key); }
  void erase(std::string_view key);
  Json& push_back(Json);
  std::vector<Json>::const_iterator begin() const { return items_.begin(); }  // elements, or values of members
  std::vector<Json>::const_iterator end() const { return items_.end(); }
  std::vector<Member> items() const;

  bool operator==(const Json&) const;  // 1 == 1.0; the order of keys counts

 private:
  explicit Json(Type t) : type_(t) {}
  bool boolean() const;
  uint64_t integer(int64_t least, uint64_t most) const;  // the bits of an integer in this range
  double number() const;
  const std::string& string() const;
  const std::vector<Json>& elements() const;
  [[noreturn]] void fail_type(std::string_view wanted) const;

  friend struct JsonText;
  Type type_ = Type::null;
  union {
    int64_t integer = 0;
    uint64_t natural;
    double number;
  } bits_;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::string> keys_;  // of an object, parallel to items_
};
struct Json::Member {
  const std::string& key;
  const Json& value;
};

// Parses text from outside. The JSON library keeps the last of equal keys and accepts any nesting; this throws an Error
// for invalid JSON, nesting deeper than `depth`, and repeated keys. Messages begin with `op`; `source` names the text.
Json parse_json(std::string_view text, std::string_view op, const std::string& source, size_t depth = 6);
// For text that this library wrote. Invalid JSON, or nesting deeper than 64, is an Error or null.
Json own_json(std::string_view text);
Json json_or_null(std::string_view text);
// On one line, or one field per line, indented by `indent` spaces. Invalid UTF-8, which paths may have, becomes U+FFFD.
std::string text_of(const Json&, int indent = -1);
std::ostream& operator<<(std::ostream&, const Json&);  // on one line

}  // namespace tg
