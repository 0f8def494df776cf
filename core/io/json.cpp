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

Json::Json(std::initializer_list<Json> list) {
  const auto is_member = [](const Json& x) { return x.is_array() && x.size() == 2 && x[0].is_string(); };
  if (!std::ranges::all_of(list, is_member)) {
    value_ = List(list);
    return;
  }
  auto& members = value_.emplace<Members>();
  for (const Json& x : list) members.push_back({x[0].get<std::string>(), x[1]});
}

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null", "boolean", "number", "number", "number", "string", "array", "object"};
  return kNames[value_.index()];
}
bool Json::is_blank() const {
  return is_null() || (is_string() && text().empty()) || ((is_array() || is_object()) && empty());
}
void Json::fail_type(std::string_view wanted) const {
  detail::fail(Error::Kind::value,
               fmt::format("[json] {} is no {}. Look at its type first.", detail::text_of(*this), wanted));
}
const Json::List& Json::list() const {
  static const List none;
  return is_array() ? std::get<List>(value_) : none;
}
uint64_t Json::integer(int64_t least, uint64_t most) const {
  const long double x = std::trunc(number());
  TG_CHECK(x >= least && x <= most, value, "[json] {} is asked for as an integer of {} to {}. Look at its size first.",
           detail::text_of(*this), least, most);
  return x < 0 ? uint64_t(int64_t(x)) : uint64_t(x);
}
long double Json::number() const {
  if (is<int64_t>()) return std::get<int64_t>(value_);
  if (is<uint64_t>()) return std::get<uint64_t>(value_);
  return as<double>("number");
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const auto at = std::ranges::find(items(), key, &Member::key);
  return at == items().end() ? nullptr : &at->value;
}
const Json& Json::member(std::string_view key) const {
  static const Json none;
  const Json* found = find(key);
  return found ? *found : none;
}
const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  TG_CHECK(found, value, "[json] {} has no '{}'. Look with contains().", detail::text_of(*this), key);
  return *found;
}
const Json& Json::at(size_t i) const {
  const List& all = as<List>("array");
  TG_CHECK(i < all.size(), value, "[json] {} has no element {}. Look at its size().", detail::text_of(*this), i);
  return all[i];
}
Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Members();
  if (const Json* found = find(key)) return const_cast<Json&>(*found);
  (void)items();
  std::get<Members>(value_).push_back({std::string(key), {}});
  return std::get<Members>(value_).back().value;
}
void Json::erase(std::string_view key) {
  if (is_object()) std::erase_if(std::get<Members>(value_), [&](const Member& m) { return m.key == key; });
}
Json& Json::push_back(Json x) {
  if (is_null()) value_ = List();
  (void)as<List>("array");
  return std::get<List>(value_).emplace_back(std::move(x));
}
bool Json::operator==(const Json& o) const {
  return is_number() && o.is_number() ? number() == o.number() : value_ == o.value_;
}

// Values come from events: nlohmann's documents would search all keys for each new one.
struct JsonText {
  using Library = nlohmann::ordered_json;

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
      auto& [object, keys] = open_.back();
      const bool repeated = !keys.insert(x).second;
      TG_CHECK(own_ || !repeated, value, "[{}] {}: '{}' comes twice. Each key must be unique.", op_, source_, x);
      auto& members = std::get<Json::Members>(object->value_);
      if (!repeated) members.push_back({std::move(x), {}});
      value_ = repeated ? &(*object)[x] : &members.back().value;
      return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
      if (op_.empty()) return false;
      const std::string other = detail::foreign_format(first_);
      TG_CHECK(other.empty(), value, "[{}] {} is not JSON but {}.", op_, source_, other);
      // as "[json.exception.parse_error.101] parse error at line 1, column 3: ..."
      const std::string_view what = e.what();
      detail::fail(Error::Kind::value, fmt::format("[{}] {} is not JSON: {}. Correct the text.", op_, source_,
                                                   what.substr(std::min(what.find("] ") + 2, what.size()))));
    }

   private:
    struct Open {
      Json* value;
      std::set<std::string> keys;
    };
    // Stores x, returns its address. Values in open_ do not move: containers grow after their elements are complete.
    Json* put(Json x) {
      TG_CHECK(open_.size() < depth_, value, "[{}] {} is nested too deeply. It must be objects of plain values.", op_,
               source_);
      if (!open_.empty() && open_.back().value->is_array()) return &open_.back().value->push_back(std::move(x));
      return &(*value_ = std::move(x));
    }
    bool add(Json x) { return put(std::move(x)), true; }
    bool begin(Json x) { return open_.push_back({put(std::move(x)), {}}), true; }
    bool end() { return open_.pop_back(), true; }

    const std::string_view first_, op_;
    const std::string& source_;
    const size_t depth_;
    const bool own_;  // the last of equal keys wins
    std::vector<Open> open_;
    Json* value_ = &result;  // value of the last key
  };
  // Returns null for invalid JSON if `op` is empty.
  static Json read(std::string_view text, std::string_view op, const std::string& source, size_t depth, bool own) {
    Reader reader(text, op, source, depth, own);
    return Library::sax_parse(text, &reader) ? std::move(reader.result) : Json();
  }

  static Library library(const Json& x) {
    const auto convert = []<class T>(const T& value) -> Library {
      if constexpr (std::same_as<T, Json::List>) {
        Library::array_t all;
        for (const Json& element : value) all.push_back(library(element));
        return all;
      } else if constexpr (std::same_as<T, Json::Members>) {
        Library::object_t all;
        for (const auto& [key, member] : value) all.emplace_back(key, library(member));
        return all;
      } else {
        return value;
      }
    };
    return std::visit(convert, x.value_);
  }
};

Json detail::parse_json(std::string_view text, std::string_view op, const std::string& source, size_t depth) {
  return JsonText::read(text, op, source, depth, false);
}
constexpr size_t kDepth = 64;  // recursion frees values; tapegrad's are flatter
Json detail::own_json(std::string_view text) { return JsonText::read(text, "json", "the text", kDepth, true); }
Json detail::json_or_null(std::string_view text) {
  try {
    return JsonText::read(text, "", "", kDepth, true);
  } catch (const Error&) {
    return {};
  }
}
std::string detail::text_of(const Json& x, int indent, bool ascii) {
  return JsonText::library(x).dump(indent, ' ', ascii, JsonText::Library::error_handler_t::replace);
}
std::ostream& operator<<(std::ostream& to, const Json& x) { return to << detail::text_of(x); }

}  // namespace tg
