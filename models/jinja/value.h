// Template values, with Python's operations and texts.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::jinja {

template <class... A> [[noreturn]] void refuse(fmt::format_string<A...> form, A&&... values) {
  detail::fail(Error::Kind::value, "[jinja] " + fmt::format(form, std::forward<A>(values)...));
}

// Limits: nesting (text, values, calls), consecutive operators, work.
inline constexpr size_t kMostNested = 64, kDeepestValue = 100, kDeepestRun = 500, kMostInRow = 100,
                        kMostWork = 8'000'000;

struct Items;
struct Value {
  enum Kind : uint8_t { absent, undefined, none, boolean, integer, number, string, list, dict, space, callable };
  Kind kind = undefined;  // absent: argument not given; space: namespace or `loop`
  bool safe = false;      // safe string: `+` escapes only the other operand
  union {
    int64_t whole = 0;  // booleans are 0 and 1
    double real;
  };
  std::shared_ptr<void> object;  // std::string (also of undefined), Items or Function

  Value(Kind k = undefined, std::shared_ptr<void> o = nullptr) : kind(k), object(std::move(o)) {}
  template <std::same_as<bool> T> Value(T x) : kind(boolean), whole(x) {}
  template <std::signed_integral T> Value(T x) : kind(integer), whole(x) {}
  Value(double x) : kind(number), real(x) {}
  template <class T> T& as() const { return *static_cast<T*>(object.get()); }
  const std::string& text() const { return as<std::string>(); }
  bool is_whole() const { return kind == boolean || kind == integer; }
  bool is_number() const { return is_whole() || kind == number; }
  bool given() const { return kind != absent && kind != none; }
};
using Values = std::vector<Value>;
enum class Form : uint8_t { list, tuple, view, iterator };  // view: range(), keys(); iterator: read once
struct Items {
  Values keys, values;  // keys of a dict or space
  Form form = Form::list;
  size_t depth = 0;
};
inline bool has_form(const Value& x, Form f) { return x.kind == Value::list && x.as<Items>().form == f; }
struct Call {
  Values values;  // builtin arguments: its object, then one per parameter
  std::vector<std::pair<std::string, Value>> named;
  const Value& operator[](size_t i) const { return values[i]; }
  // Completes values[at] onwards by the names in "sep count?". Returns their end.
  size_t bind(std::string_view callee, std::string_view params, size_t at);
};
struct Run;
using Function = std::function<Value(Run&, Call&)>;
struct Builtin {
  std::string_view name = {}, params = {};  // "sep? count?"; "*": any
  Value (*run)(Run&, std::string_view name, Call&) = nullptr;
};
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
Builtin find_method(const Value&, std::string_view name);
Builtin find_function(std::string_view name);
struct JsonForm {
  std::string indent = {}, item = ", ", key = ": ";
  bool lines = false, ascii = false;
};
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> names = {};
};

/// One rendering; work bounds time and memory.
struct Run {
  Items context = {};
  std::string out = {};
  std::vector<std::pair<size_t, size_t>> generated = {};
  std::shared_ptr<Scope> scope = std::make_shared<Scope>();
  std::vector<std::shared_ptr<Scope>> held = {};                      // scopes held by macros
  std::vector<std::unique_ptr<Items>> spaces = {};                    // namespaces, which may be cyclic
  enum class Flow : uint8_t { next, again, stop } flow = Flow::next;  // `continue` or `break`, until its loop
  int line = 1;
  size_t work = kMostWork, deep = 0;

  void charge(size_t n) {
    n < work ? void(work -= n) : refuse("the template does too much work. Shorten its loops or values.");
  }
  Value text(std::string);
  Value list(Values, Form = Form::list);
  Value dict(Items);
  Value function(Function f) { return {Value::callable, std::make_shared<Function>(std::move(f))}; }
  Value function(const Builtin& b, const Value& of) {
    return function([=](Run& r, Call& c) { return c.values.insert(c.values.begin(), of), r.apply(b, std::move(c)); });
  }
  Value undefined(std::string what) { return {Value::undefined, std::make_shared<std::string>(std::move(what))}; }
  Value from(const Json&, size_t depth = 0);
  bool truth(const Value&);
  bool equal(const Value&, const Value&);
  bool less(const Value&, const Value&, bool or_equal = false);
  Value binary(std::string_view op, const Value&, const Value&);
  int64_t length(const Value&);
  Values items(const Value&);  // items that a loop reads
  Value* find(Items&, const Value& key);
  void insert(Items&, const Value& key, Value);
  Value item(const Value&, const Value& key);         // x[key]
  Value attribute(const Value&, const std::string&);  // x.name
  Value slice(const Value&, const Value& from, const Value& to, const Value& step);
  std::string str(const Value&);
  void write(std::string& to, const Value&, const JsonForm* json = nullptr, size_t depth = 0);  // text or repr()
  Value apply(const Builtin&, Call);
};

std::string type_of(const Value&);  // type name or undefined name
// First character's bytes and code point; an invalid byte is a character.
std::string_view first(std::string_view);
char32_t code_of(std::string_view);
bool is_space(char32_t);
std::string_view strip(std::string_view, bool left = true, bool right = true, const std::string* chars = nullptr);
std::string escaped(std::string_view);  // HTML

}  // namespace tg::jinja
