#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

namespace tg {

Json::Json(std::string x) : type_(Type::string), text_(std::move(x)) {}
Json::Json(std::initializer_list<Json> list) : type_(Type::array), items_(list) {
  const auto is_member = [](const Json& x) { return x.is_array() && x.size() == 2 && x.items_[0].is_string(); };
  if (!std::all_of(list.begin(), list.end(), is_member)) return;
  type_ = Type::object;
  for (Json& x : items_) {
    keys_.push_back(std::move(x.items_[0].text_));
    Json value = std::move(x.items_[1]);
    x = std::move(value);
  }
}
Json Json::array(std::initializer_list<Json> list) {
  Json j(Type::array);
  j.items_ = list;
  return j;
}

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null", "boolean", "number", "number", "number", "string", "array", "object"};
  return kNames[size_t(type_)];
}
void Json::fail_type(std::string_view wanted) const {
  detail::fail(Error::Kind::value, fmt::format("[json] {} is no {}. Look at its type first.", text_of(*this), wanted));
}
bool Json::boolean() const {
  if (!is_boolean()) fail_type("boolean");
  return bits_.integer;
}
uint64_t Json::integer(int64_t least, uint64_t most) const {
  if (!is_number()) fail_type("number");
  Json x = *this;
  if (is_number_float()) {
    const double whole = std::trunc(bits_.number);
    if (std::abs(whole) < 0x1p63) x = int64_t(whole);
    if (whole >= 0x1p63 && whole < 0x1p64) x = uint64_t(whole);
  }
  const bool holds =
      !x.is_number_float() &&
      (x.is_number_unsigned() || x.bits_.integer >= 0 ? x.bits_.natural <= most : x.bits_.integer >= least);
  TG_CHECK(holds, value, "[json] {} is asked for as an integer of {} to {}. Look at its size first.", text_of(*this),
           least, most);
  return x.bits_.natural;
}
double Json::number() const {
  if (is_number_float()) return bits_.number;
  if (!is_number()) fail_type("number");
  return is_number_unsigned() ? double(bits_.natural) : double(bits_.integer);
}
const std::string& Json::string() const {
  if (!is_string()) fail_type("string");
  return text_;
}
const std::vector<Json>& Json::elements() const {
  if (!is_array()) fail_type("array");
  return items_;
}

const Json* Json::find(std::string_view key) const {
  const auto at = std::find(keys_.begin(), keys_.end(), key);
  return at == keys_.end() ? nullptr : &items_[size_t(at - keys_.begin())];
}
const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  TG_CHECK(found, value, "[json] {} has no '{}'. Look with contains().", text_of(*this), key);
  return *found;
}
const Json& Json::at(size_t i) const {
  TG_CHECK(i < elements().size(), value, "[json] {} has no element {}. Look at its size().", text_of(*this), i);
  return items_[i];
}
Json& Json::operator[](std::string_view key) {
  if (is_null()) type_ = Type::object;
  if (!is_object()) fail_type("object");
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  keys_.emplace_back(key);
  return items_.emplace_back();
}
void Json::erase(std::string_view key) {
  const auto at = std::find(keys_.begin(), keys_.end(), key);
  if (at == keys_.end()) return;
  items_.erase(items_.begin() + (at - keys_.begin()));
  keys_.erase(at);
}
Json& Json::push_back(Json x) {
  if (is_null()) type_ = Type::array;
  if (!is_array()) fail_type("array");
  return items_.emplace_back(std::move(x));
}
std::vector<Json::Member> Json::items() const {
  if (!is_object()) fail_type("object");
  std::vector<Member> all;
  for (size_t i = 0; i < items_.size(); ++i) all.push_back({keys_[i], items_[i]});
  return all;
}
bool Json::operator==(const Json& o) const {
  if (is_number_float() || o.is_number_float()) return is_number() && o.is_number() && number() == o.number();
  if (is_number() && o.is_number()) return bits_.integer == o.bits_.integer;
  return type_ == o.type_ && bits_.integer == o.bits_.integer && text_ == o.text_ && items_ == o.items_ &&
         keys_ == o.keys_;
}

// Reads and writes with the JSON library's events and scalars. Its documents would be a second copy, and searched for
// each new key.
struct JsonText {
  using Library = nlohmann::json;

  class Reader : public nlohmann::json_sax<Library> {
   public:
    Reader(std::string_view text, std::string_view op, const std::string& source, size_t depth, bool own)
        : first_(text.substr(0, 512)), op_(op), source_(source), depth_(depth), own_(own) {}
    Json result;

    bool null() override { return add({}); }
    bool boolean(bool x) override { return add(x); }
    bool number_integer(int64_t x) override { return add(x); }
    bool number_unsigned(uint64_t x) override { return add(x); }
    bool number_float(double x, const std::string&) override { return add(x); }
    bool string(std::string& x) override { return add(std::move(x)); }
    bool binary(binary_t&) override { return false; }  // not in JSON
    bool start_object(size_t) override { return begin(Json::object()); }
    bool start_array(size_t) override { return begin(Json::array()); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(std::string& x) override {
      repeated_ = !open_.back().keys.insert(x).second;
      TG_CHECK(own_ || !repeated_, value, "[{}] {}: '{}' comes twice. Each key must be unique.", op_, source_, x);
      key_ = std::move(x);
      return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
      if (op_.empty()) return false;
      const std::string other = foreign_format(first_);
      TG_CHECK(other.empty(), value, "[{}] {} is not JSON but {}.", op_, source_, other);
      const std::string_view what =
          // "[json.exception.parse_error.101] parse error at line 1, column 3: ..."
          e.what();
      detail::fail(Error::Kind::value, fmt::format("[{}] {} is not JSON: {}. Correct the text.", op_, source_,
                                                   what.substr(std::min(what.find("] ") + 2, what.size()))));
    }

   private:
    struct Open {
      Json* value;
      std::set<std::string> keys;
    };
    // Stores x and returns its address. Values in open_ do not move: their containers grow only after they are
    // complete.
    Json* put(Json x) {
      TG_CHECK(open_.size() < depth_, value, "[{}] {} is nested too deeply. It must be objects of plain values.", op_,
               source_);
      if (open_.empty()) return &(result = std::move(x));
      Json& to = *open_.back().value;
      if (to.is_array()) return &to.push_back(std::move(x));
      if (repeated_) return &(to[key_] = std::move(x));
      to.keys_.push_back(std::move(key_));
      return &to.items_.emplace_back(std::move(x));
    }
    bool add(Json x) { return put(std::move(x)), true; }
    bool begin(Json x) { return open_.push_back({put(std::move(x)), {}}), true; }
    bool end() { return open_.pop_back(), true; }

    const std::string_view first_, op_;
    const std::string& source_;
    const size_t depth_;
    const bool own_;  // keeps the last of equal keys
    std::vector<Open> open_;
    std::string key_;
    bool repeated_ = false;
  };
  // Without `op`, null for what is no JSON.
  static Json read(std::string_view text, std::string_view op, const std::string& source, size_t depth, bool own) {
    Reader reader(text, op, source, depth, own);
    return Library::sax_parse(text, &reader) ? std::move(reader.result) : Json();
  }

  static Library scalar(const Json& x) {
    switch (x.type_) {
      case Json::Type::boolean: return bool(x.bits_.integer);
      case Json::Type::integer: return x.bits_.integer;
      case Json::Type::unsigned_integer: return x.bits_.natural;
      case Json::Type::number: return x.bits_.number;
      case Json::Type::string: return x.text_;
      default: return {};
    }
  }
  static std::string text(const Library& scalar) {
    return scalar.dump(-1, ' ', false, Library::error_handler_t::replace);
  }
  static void write(const Json& x, int indent, std::string& to, const std::string& line) {
    if (!x.is_array() && !x.is_object()) {
      to += text(scalar(x));
      return;
    }
    const std::string inner = indent < 0 ? "" : line + std::string(size_t(indent), ' ');
    to += x.is_object() ? '{' : '[';
    for (size_t i = 0; i < x.size(); ++i) {
      to += (i ? "," : "") + inner;
      if (x.is_object()) to += text(x.keys_[i]) + (indent < 0 ? ":" : ": ");
      write(x.items_[i], indent, to, inner);
    }
    if (!x.empty()) to += line;
    to += x.is_object() ? '}' : ']';
  }
};

Json parse_json(std::string_view text, std::string_view op, const std::string& source, size_t depth) {
  return JsonText::read(text, op, source, depth, false);
}
constexpr size_t kDepth = 64;  // values are freed by recursion; ours are flatter
Json own_json(std::string_view text) { return JsonText::read(text, "json", "the text", kDepth, true); }
Json json_or_null(std::string_view text) {
  try {
    return JsonText::read(text, "", "", kDepth, true);
  } catch (const Error&) {
    return {};
  }
}
std::string text_of(const Json& x, int indent) {
  std::string text;
  JsonText::write(x, indent, text, indent < 0 ? "" : "\n");
  return text;
}
std::ostream& operator<<(std::ostream& to, const Json& x) { return to << text_of(x); }

}  // namespace tg
