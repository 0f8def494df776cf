#include <tapegrad/models/jinja/value.h>
#include <tapegrad/models/tokenizers/utf8.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tg::jinja {
namespace {
size_t nested(const Values& values) {
  size_t depth = 0;
  for (const Value& x : values)
    if (x.kind == Value::list || x.kind == Value::dict) depth = std::max(depth, x.as<Items>().depth + 1);
  if (depth > kDeepestValue) refuse("values are nested deeper than {}. Flatten them.", kDeepestValue);
  return depth;
}
long double exact(const Value& x) { return x.kind == Value::number ? (long double)x.real : (long double)x.whole; }
bool is_key(const Value& x) { return x.kind != Value::dict && !has_form(x, Form::list); }
bool is_sequence(const Value& x) {
  return (x.kind == Value::string && !x.safe) || has_form(x, Form::list) || has_form(x, Form::tuple);
}

Value of_wholes(std::string_view op, __int128 a, __int128 b) {
  __int128 r = op == "+"    ? a + b
               : op == "-"  ? a - b
               : op == "*"  ? a * b
               : op == "%"  ? (a % b + b) % b
               : op == "**" ? 1
                            : (a - (a % b + b) % b) / b;
  constexpr __int128 kMost = INT64_MAX;
  for (b = op != "**" ? 0 : a * a < 2 && b > 2 ? 2 - b % 2 : b; b > 0 && r <= kMost && r >= -kMost; --b) r *= a;
  if (r > kMost || r < -kMost) refuse("a result of '{}' needs more than 64 bits. Use smaller integers.", op);
  return int64_t(r);
}
std::string digits_of(double x, bool json) {
  if (json && !std::isfinite(x)) return std::isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity";
  const std::string text = fmt::format("{}", std::isnan(x) ? std::abs(x) : x);
  return text.find_first_of(".en") == text.npos ? text + ".0" : text;
}
void quote(std::string& to, std::string_view s) {
  const char mark = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  to += mark;
  for (; !s.empty(); s.remove_prefix(first(s).size())) {
    const auto c = uint32_t(code_of(s));
    constexpr std::string_view kFrom = "\\\n\r\t", kTo = "\\nrt";
    const size_t k = c < 128 ? kFrom.find(char(c)) : kFrom.npos;
    const auto category = utf8proc_category(int32_t(c));
    if (c == uint32_t(mark) || k != kFrom.npos)
      to += {'\\', k == kFrom.npos ? mark : kTo[k]};
    else if (c != ' ' && (!category || category >= UTF8PROC_CATEGORY_ZS))
      to += c > 0xFFFF ? fmt::format("\\U{:08x}", c)
            : c > 0xFF ? fmt::format("\\u{:04x}", c)
                       : fmt::format("\\x{:02x}", c);
    else
      to += first(s);
  }
  to += mark;
}
}  // namespace

std::string_view first(std::string_view s) { return s.substr(0, std::max<size_t>(1, detail::first_of(s).length)); }
char32_t code_of(std::string_view s) { return detail::first_of(s).code; }
static size_t offset_of(std::string_view s, int64_t point) {
  size_t at = 0;
  for (; point > 0 && at < s.size(); --point) at += first(s.substr(at)).size();
  return at;
}
bool is_space(char32_t c) {  // str.isspace()
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
std::string_view strip(std::string_view s, bool left, bool right, const std::string* chars) {
  const auto goes = [&](std::string_view c) {
    for (std::string_view all = chars ? std::string_view(*chars) : ""; !all.empty();
         all.remove_prefix(first(all).size()))
      if (first(all) == c) return true;
    return !chars && is_space(code_of(c));
  };
  while (left && !s.empty() && goes(first(s))) s.remove_prefix(first(s).size());
  while (right && !s.empty() && goes(s.substr(detail::last_at(s)))) s = s.substr(0, detail::last_at(s));
  return s;
}
std::string escaped(std::string_view s) {
  constexpr std::string_view kMarks = "&<>'\"", kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string to;
  for (const char& c : s) {
    const size_t k = kMarks.find(c);
    to += k < kMarks.size() ? kEscapes[k] : std::string_view(&c, 1);
  }
  return to;
}
std::string type_of(const Value& x) {
  constexpr const char* kNames[] = {"nothing", "undefined ", "None", "bool",      "int",     "float",
                                    "str",     "list",       "dict", "namespace", "function"};
  constexpr const char* kForms[] = {"list", "tuple", "view", "iterator"};
  if (x.kind == Value::undefined) return kNames[1] + x.text();
  return x.kind == Value::list ? kForms[size_t(x.as<Items>().form)] : kNames[x.kind];
}

Value Run::text(std::string s) {
  charge(4 + s.size() / 32);
  return {Value::string, std::make_shared<std::string>(std::move(s))};
}
Value Run::list(Values all, Form form) {
  charge(4 + all.size());
  const size_t depth = nested(all);
  return {Value::list, std::make_shared<Items>(Items{{}, std::move(all), form, depth})};
}
Value Run::dict(Items d) {
  charge(4 + 2 * d.keys.size());
  d.depth = std::max(nested(d.keys), nested(d.values));
  return {Value::dict, std::make_shared<Items>(std::move(d))};
}
Value Run::from(const Json& x, size_t depth) {
  if (depth > kDeepestValue) refuse("the context is nested deeper than {}. Flatten it.", kDeepestValue);
  if (x.is_null()) return Value::none;
  if (x.is_boolean()) return x.get<bool>();
  if (x.is_number()) return x.is_number_float() ? Value(x.get<double>()) : Value(x.get<int64_t>());
  if (x.is_string()) return text(x.get<std::string>());
  Items all;
  if (x.is_array()) {
    for (const Json& v : x) all.values.push_back(from(v, depth + 1));
    return list(std::move(all.values));
  }
  for (const auto& [key, v] : x.items()) all.keys.push_back(text(key)), all.values.push_back(from(v, depth + 1));
  return dict(std::move(all));
}

bool Run::truth(const Value& x) {
  if (x.kind < Value::string) return x.kind == Value::number ? x.real != 0 : x.is_whole() && x.whole != 0;
  return x.kind > Value::dict || has_form(x, Form::iterator) || length(x) > 0;
}
bool Run::equal(const Value& a, const Value& b) {
  charge(1);
  if (a.is_number() && b.is_number()) return exact(a) == exact(b);
  if (a.kind != b.kind) return false;
  if (a.kind == Value::string) return charge(a.text().size() / 32), a.text() == b.text();
  if (a.kind != Value::list && a.kind != Value::dict) return a.kind < Value::boolean || a.object == b.object;
  Items &x = a.as<Items>(), &y = b.as<Items>();
  if (x.form > Form::tuple || y.form > Form::tuple)
    refuse("{} == {} is not supported. Make them lists.", type_of(a), type_of(b));
  bool same = x.form == y.form && x.values.size() == y.values.size();
  for (size_t i = 0; same && i < x.values.size(); ++i) {
    const Value* other = a.kind == Value::list ? &y.values[i] : find(y, x.keys[i]);
    same = other && equal(x.values[i], *other);
  }
  return same;
}
bool Run::less(const Value& a, const Value& b, bool or_equal) {
  charge(1);
  if (a.is_number() && b.is_number()) return or_equal ? exact(a) <= exact(b) : exact(a) < exact(b);
  if (a.kind == Value::string && b.kind == a.kind)
    return charge(a.text().size() / 32), or_equal ? a.text() <= b.text() : a.text() < b.text();
  if (a.kind != Value::list || !is_sequence(a) || type_of(a) != type_of(b))
    refuse("{} and {} have no order. Convert one.", type_of(a), type_of(b));
  const Values &x = a.as<Items>().values, &y = b.as<Items>().values;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(x[i], y[i])) return less(x[i], y[i], or_equal);
  return or_equal ? x.size() <= y.size() : x.size() < y.size();
}
Value Run::binary(std::string_view op, const Value& a, const Value& b) {
  if (op == "~") return text(str(a) + str(b));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op[0] == '<') return less(a, b, op.size() == 2);
  if (op[0] == '>') return less(b, a, op.size() == 2);
  if (op == "not in") return !truth(binary("in", a, b));
  const auto joined = [](Values x, const Values& y) { return x.insert(x.end(), y.begin(), y.end()), x; };
  if (op == "in" && b.kind == Value::dict) return find(b.as<Items>(), a) != nullptr;
  if (op == "in" && b.kind == Value::string && a.kind == Value::string) {
    charge(b.text().size() / 32 * (1 + a.text().size() / 64));
    return b.text().find(a.text()) != std::string::npos;
  }
  if (op == "in" && b.kind != Value::string) {
    const Values all = items(b);
    return std::ranges::any_of(all, [&](const Value& x) { return equal(a, x); });
  }
  if (a.is_number() && b.is_number()) {
    const bool wholes = a.is_whole() && b.is_whole();
    if ((exact(b) == 0 && (op == "/" || op == "//" || op == "%")) || (op.size() == 2 && (!wholes || b.whole < 0)) ||
        (op == "%" && !wholes))
      refuse("{} {} {} is not supported.", str(a), op, str(b));
    if (wholes && op != "/") return of_wholes(op, a.whole, b.whole);
    const double x = double(exact(a)), y = double(exact(b));
    return op == "+" ? x + y : op == "-" ? x - y : op == "*" ? x * y : x / y;
  }
  if (op == "+" && a.kind == Value::string && b.kind == a.kind) {
    const bool safe = a.safe || b.safe;
    Value sum =
        text((safe && !a.safe ? escaped(a.text()) : a.text()) + (safe && !b.safe ? escaped(b.text()) : b.text()));
    sum.safe = safe;
    return sum;
  }
  if (op == "+" && is_sequence(a) && type_of(a) == type_of(b))
    return list(joined(a.as<Items>().values, b.as<Items>().values), a.as<Items>().form);
  if (op == "*" && a.is_whole() && is_sequence(b)) return binary(op, b, a);
  if (op != "*" || !is_sequence(a) || !b.is_whole())
    refuse("{} {} {} has no value. Convert one.", type_of(a), op, type_of(b));
  const size_t each = a.kind == Value::string ? a.text().size() : a.as<Items>().values.size();
  if (each && b.whole > int64_t(work / each)) charge(work);
  std::string s;
  Values all;
  for (int64_t i = 0; each && i < b.whole; ++i)
    a.kind == Value::string ? void(s += a.text()) : void(all = joined(std::move(all), a.as<Items>().values));
  return a.kind == Value::string ? text(std::move(s)) : list(std::move(all), a.as<Items>().form);
}
int64_t Run::length(const Value& x) {
  if (x.kind == Value::list && !has_form(x, Form::iterator)) return int64_t(x.as<Items>().values.size());
  if (x.kind == Value::dict) return int64_t(x.as<Items>().keys.size());
  if (x.kind != Value::string && x.kind != Value::undefined) refuse("{} has no length. Make it a list.", type_of(x));
  if (x.kind == Value::undefined) return 0;
  charge(x.text().size() / 32);
  int64_t n = 0;
  for (std::string_view s = x.text(); !s.empty(); s.remove_prefix(first(s).size())) ++n;
  return n;
}
Values Run::items(const Value& x) {
  Values all;
  if (x.kind == Value::string) {
    for (std::string_view s = x.text(); !s.empty(); s.remove_prefix(first(s).size()))
      all.push_back(text(std::string(first(s))));
  } else if (x.kind == Value::list || x.kind == Value::dict) {
    Items& of = x.as<Items>();
    all = x.kind == Value::dict ? of.keys : of.values;
    charge(all.size());
    if (of.form == Form::iterator) of.values.clear();  // Python's iterator ends too
  } else if (x.kind != Value::undefined) {
    refuse("{} has no items. Loop over a list, a dict or a string.", type_of(x));
  }
  return all;
}
Value* Run::find(Items& d, const Value& key) {
  if (!is_key(key)) refuse("{} is no key of a dict.", type_of(key));
  charge(d.keys.size() / 8);
  for (size_t i = 0; i < d.keys.size(); ++i) {
    const bool texts = key.kind == Value::string && d.keys[i].kind == Value::string;
    if (texts ? key.text() == d.keys[i].text() : key.kind != Value::string && equal(key, d.keys[i]))
      return &d.values[i];
  }
  return nullptr;
}
void Run::insert(Items& d, const Value& key, Value x) {
  if (Value* old = find(d, key)) return void(*old = std::move(x));
  d.keys.push_back(key);
  d.values.push_back(std::move(x));
}
Value Run::attribute(const Value& x, const std::string& name) {
  charge(1);
  if (x.kind == Value::undefined)
    refuse("{} has no attribute '{}'. Set it, or ask whether it is defined.", type_of(x), name);
  if (const Builtin b = find_method(x, name); b.run) return function(b, x);
  const Value* found = x.kind == Value::dict || x.kind == Value::space ? find(x.as<Items>(), text(name)) : nullptr;
  return found ? *found : undefined(fmt::format("'{}' of {}", name, type_of(x)));
}
Value Run::item(const Value& x, const Value& key) {
  charge(1);
  const Value* found = x.kind == Value::dict && is_key(key) ? find(x.as<Items>(), key) : nullptr;
  if (found) return *found;
  if (key.kind == Value::string || x.kind == Value::undefined)
    return attribute(x, key.kind == Value::string ? key.text() : "item");
  if (key.is_whole() && has_form(x, Form::view)) refuse("items of a view are not supported. Make it a list.");
  if (!key.is_whole() || (!is_sequence(x) && x.kind != Value::string)) return undefined("an item of " + type_of(x));
  const int64_t n = length(x), i = key.whole < 0 ? key.whole + n : key.whole;
  if (i < 0 || i >= n) return undefined(fmt::format("item {} of {}", key.whole, type_of(x)));
  return x.kind == Value::list ? x.as<Items>().values[size_t(i)]
                               : text(std::string(first(std::string_view(x.text()).substr(offset_of(x.text(), i)))));
}
Value Run::slice(const Value& x, const Value& from, const Value& to, const Value& by) {
  for (const Value* v : {&from, &to, &by})
    if (!is_sequence(x) || (v->given() && (!v->is_whole() || (v == &by && v->whole == 0))))
      refuse("a slice of {} by {} is not supported.", type_of(x), type_of(*v));
  const int64_t n = length(x), step = by.given() ? by.whole : 1;
  const auto bound = [&](const Value& v, int64_t otherwise) {
    return v.given() ? std::clamp<int64_t>(v.whole < 0 ? v.whole + n : v.whole, step < 0 ? -1 : 0, step < 0 ? n - 1 : n)
                     : otherwise;
  };
  const int64_t start = bound(from, step < 0 ? n - 1 : 0), end = bound(to, step < 0 ? -1 : n);
  if (x.kind == Value::string && step == 1) {
    const std::string_view rest = std::string_view(x.text()).substr(offset_of(x.text(), start));
    return text(std::string(rest.substr(0, offset_of(rest, end - start))));
  }
  Values all = items(x), some;
  for (__int128 i = start; step < 0 ? i > end : i < end; i += step) some.push_back(all[size_t(i)]);
  if (x.kind == Value::list) return list(std::move(some), x.as<Items>().form);
  return text(std::accumulate(some.begin(), some.end(), std::string(),
                              [](std::string s, const Value& c) { return std::move(s) + c.text(); }));
}
std::string Run::str(const Value& x) {
  if (x.kind == Value::string) return charge(x.text().size() / 32), x.text();
  std::string s;
  if (x.kind != Value::undefined) write(s, x);
  return s;
}
void Run::write(std::string& to, const Value& x, const JsonForm* json, size_t depth) {
  charge(1 + (x.kind == Value::string ? x.text().size() / 32 : 0));
  if (x.kind == Value::string && !x.safe)
    return json ? void(to += detail::text_of(Json(x.text()), -1, json->ascii)) : quote(to, x.text());
  if (x.kind == Value::number) return void(to += digits_of(x.real, json));
  if (x.kind == Value::integer) return void(to += std::to_string(x.whole));
  if (x.kind == Value::boolean) return void(to += json ? x.whole ? "true" : "false" : x.whole ? "True" : "False");
  if (x.kind == Value::none || (x.kind == Value::undefined && !json))
    return void(to += x.kind == Value::undefined ? "Undefined" : json ? "null" : "None");
  if (x.kind != Value::dict && !is_sequence(x)) refuse("the text of {} is not supported here. Convert it.", type_of(x));
  const Items& all = x.as<Items>();
  const auto new_line = [&](size_t level) {
    if (!json || !json->lines || all.values.empty()) return;
    to += '\n';
    for (charge(level * json->indent.size() / 32); level > 0; --level) to += json->indent;
  };
  const bool tuple = all.form == Form::tuple && !json;
  to += x.kind == Value::dict ? '{' : tuple ? '(' : '[';
  for (size_t i = 0; i < all.values.size(); ++i) {
    if (i) to += json ? json->item : ", ";
    new_line(depth + 1);
    std::string key;
    if (x.kind == Value::dict)
      write(key, all.keys[i], json), to += (json && key[0] != '"' ? '"' + key + '"' : key) + (json ? json->key : ": ");
    write(to, all.values[i], json, depth + 1);
  }
  new_line(depth);
  to += x.kind == Value::dict ? "}" : tuple ? all.values.size() == 1 ? ",)" : ")" : "]";
}

size_t Call::bind(std::string_view callee, std::string_view params, size_t at) {
  for (; !params.empty(); ++at) {
    std::string_view name = params.substr(0, params.find(' '));
    params.remove_prefix(std::min(name.size() + 1, params.size()));
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    if (at < values.size()) continue;
    const auto found = std::ranges::find(named, name, [](const auto& v) { return std::string_view(v.first); });
    if (!optional && found == named.end()) refuse("'{}' lacks the argument '{}'.", callee, name);
    values.push_back(found == named.end() ? Value(Value::absent) : found->second);
    if (found != named.end()) named.erase(found);
  }
  return at;
}
Value Run::apply(const Builtin& b, Call call) {
  charge(1);
  for (const Value& x : call.values) charge(x.kind == Value::string ? x.text().size() / 16 : 0);
  if (call[0].kind == Value::string && call.values.size() > 1 && call[1].kind == Value::string)
    charge(call[0].text().size() / 32 * (call[1].text().size() / 64));
  if (call[0].safe && b.name != "safe" && b.name != "length" && b.name != "string")
    refuse("'{}' of a safe string is not supported. Leave 'safe' out.", b.name);
  if (b.params == "*") return b.run(*this, b.name, call);
  if (call.bind(b.name, b.params, 1) < call.values.size() || !call.named.empty())
    refuse("'{}' has an argument too many. It takes: '{}'.", b.name, b.params);
  return b.run(*this, b.name, call);
}

}  // namespace tg::jinja
