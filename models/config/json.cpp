#include <tapegrad/core/error.h>
#include <tapegrad/models/config/json.h>

#include <algorithm>
#include <set>
#include <vector>

namespace tg {

namespace {
constexpr size_t kDepth = 6;

// Makes the document itself: the library's way looks through all keys of an object for each new one.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view op, const std::string& source) : op_(op), source_(source) {}
  Json result;

  bool null() override { return add(nullptr); }
  bool boolean(bool x) override { return add(x); }
  bool number_integer(int64_t x) override { return add(x); }
  bool number_unsigned(uint64_t x) override { return add(x); }
  bool number_float(double x, const std::string&) override { return add(x); }
  bool string(std::string& x) override { return add(std::move(x)); }
  bool binary(binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return begin(Json::object()); }
  bool start_array(size_t) override { return begin(Json::array()); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& x) override {
    check_depth();
    TG_CHECK(open_.back().keys.insert(x).second, value, "[{}] {}: '{}' comes twice. Each key stands once.", op_,
             source_, x);
    key_ = std::move(x);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 3: ..."
    detail::fail(Error::Kind::value, fmt::format("[{}] {} is not JSON: {}. Correct the text.", op_, source_,
                                                 what.substr(std::min(what.find("] ") + 2, what.size()))));
  }

 private:
  struct Open {
    Json* value;
    std::set<std::string> keys;
  };
  void check_depth() const {
    TG_CHECK(open_.size() < kDepth, value, "[{}] {} is nested too deeply. It must be objects of plain values.", op_,
             source_);
  }
  // Where x is now. Those in open_ stay where they are: what is beside them is complete.
  Json* put(Json x) {
    check_depth();
    if (open_.empty()) return &(result = std::move(x));
    Json& to = *open_.back().value;
    if (to.is_array()) {
      to.push_back(std::move(x));
      return &to.back();
    }
    auto& fields = to.get_ref<Json::object_t&>();
    fields.emplace_back(std::move(key_), std::move(x));
    return &fields.back().second;
  }
  bool add(Json x) { return put(std::move(x)), true; }
  bool begin(Json x) { return open_.push_back({put(std::move(x)), {}}), true; }
  bool end() { return open_.pop_back(), true; }

  std::string_view op_;
  const std::string& source_;
  std::vector<Open> open_;
  std::string key_;
};
}  // namespace

Json parse_json(std::string_view text, std::string_view op, const std::string& source) {
  Reader reader(op, source);
  Json::sax_parse(text, &reader);
  return std::move(reader.result);
}

Json own_json(std::string_view text) { return Json::parse(text); }

std::string text_of(const Json& x, int indent) { return x.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace tg
