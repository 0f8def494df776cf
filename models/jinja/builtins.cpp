#include <tapegrad/models/jinja/value.h>
#include <tapegrad/models/tokenizers/utf8.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <numeric>

namespace tg::jinja {
namespace {
using Name = std::string_view;

const std::string& text_of(const Value& x) {
  return x.kind == Value::string ? x.text() : (refuse("{} is not a string. Convert it.", type_of(x)), x.text());
}
int64_t whole_of(const Value& x, int64_t otherwise) {
  if (x.given() && !x.is_whole()) refuse("{} is not an integer. Convert it.", type_of(x));
  return x.given() ? x.whole : otherwise;
}
std::string padding_of(const Value& x, int64_t otherwise) {
  return x.kind == Value::string ? x.text()
                                 : std::string(size_t(std::clamp<int64_t>(whole_of(x, otherwise), 0, 100)), ' ');
}
// upper, lower, capitalize, title: first letter.
std::string cased(std::string_view s, char how) {
  std::string to;
  for (bool start = true; !s.empty(); s.remove_prefix(first(s).size())) {
    const auto c = utf8proc_int32_t(code_of(s)), low = utf8proc_tolower(c),
               up = how == 'u' ? utf8proc_toupper(c) : utf8proc_totitle(c);
    const bool raise = how == 'u' || (how != 'l' && start);
    if (raise ? c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 || (c > 0x1E95 && c < 0x1E9B) ||
                    (c > 0x1F4F && c < 0x1FFD) || c / 32 == 0x7D8
              : c == 0x130 || c == 0x3A3)
      refuse("the other case of '{}' is not supported.", first(s));
    if (raise && c == 0xDF)
      to += how == 'u' ? "SS" : "Ss";
    else
      c ? detail::append_utf8(to, char32_t(raise ? up : low)) : void(to += s[0]);
    start = how == 't' && low == up;
  }
  return to;
}
// No `sep`: runs of whitespace.
Values parts_of(Run& r, std::string_view s, const std::string* sep, int64_t most, bool right) {
  if (sep ? sep->empty() : most >= 0) refuse("this split() is not supported. Name a separator.");
  Values all;
  for (size_t at = 0; sep && most-- != 0 && (at = right ? s.rfind(*sep) : s.find(*sep)) != s.npos;) {
    all.push_back(r.text(std::string(right ? s.substr(at + sep->size()) : s.substr(0, at))));
    right ? s.remove_suffix(s.size() - at) : s.remove_prefix(at + sep->size());
  }
  for (size_t n = 0; !sep && !(s = strip(s)).empty(); s.remove_prefix(n), n = 0) {
    while (n < s.size() && !is_space(code_of(s.substr(n)))) n += first(s.substr(n)).size();
    all.push_back(r.text(std::string(s.substr(0, n))));
  }
  if (sep) all.push_back(r.text(std::string(s)));
  if (sep && right) std::ranges::reverse(all);
  return all;
}
Values lines_of(Run& r, std::string_view s) {
  Values lines;
  for (size_t at = 0, n = 0; at < s.size(); at += n) {
    const char32_t c = code_of(s.substr(at));
    n = c == '\r' && s.substr(at + 1).starts_with('\n') ? 2 : first(s.substr(at)).size();
    if ((c < 10 || c > 13) && (c < 28 || c > 30) && c != 0x85 && c != 0x2028 && c != 0x2029) continue;
    lines.push_back(r.text(std::string(s.substr(0, at))));
    s.remove_prefix(at + n), at = n = 0;
  }
  if (!s.empty()) lines.push_back(r.text(std::string(s)));
  return lines;
}
std::string replaced(Run& r, const std::string& s, const std::string& old, const std::string& by, int64_t most) {
  if (old.empty()) refuse("replace() of an empty string is not supported.");
  std::string to;
  size_t from = 0;
  for (size_t at = 0; most-- != 0 && (at = s.find(old, from)) != s.npos; from = at + old.size())
    r.charge(1 + by.size() / 32), to.append(s, from, at - from) += by;
  return to.append(s, from);
}
std::string joined(Run& r, const Values& all, const std::string& by, bool strict) {
  std::string to;
  for (size_t i = 0; i < all.size(); ++i)
    r.charge(1 + by.size() / 32), to.append(i ? by : "") += strict ? text_of(all[i]) : r.str(all[i]);
  return to;
}
Value part_of(Run& r, const Value& x, const Value& name) {  // attribute named by a filter
  if (name.kind == Value::string && name.text().find_first_of(".,0123456789") != Name::npos)
    refuse("the attribute '{}' is not supported in a filter.", name.text());
  return name.given() ? r.item(x, name) : x;
}
Value sorted(Run& r, const Values& items, const Values& keys, bool reverse) {  // stable in both directions
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return reverse ? r.less(keys[b], keys[a]) : r.less(keys[a], keys[b]); });
  Values all;
  for (const size_t i : order) all.push_back(items[i]);
  return r.list(std::move(all));
}
Value pairs(Run& r, const Items& d, Form form) {
  Values all;
  for (size_t i = 0; i < d.keys.size(); ++i) all.push_back(r.list({d.keys[i], d.values[i]}, Form::tuple));
  return r.list(std::move(all), form);
}
// map; select, reject, selectattr, rejectattr by test or truth.
Value chosen(Run& r, Name name, Call& c) {
  const bool maps = name == "map", attr = name.ends_with("attr"),
             path = maps && c.values.size() == 1 && c.named.size() == 1 && c.named[0].first == "attribute";
  const size_t at = attr ? 2 : 1;
  if (c.values.size() < at + (maps && !path)) refuse("'{}' lacks an argument.", name);
  const Builtin by = c.values.size() == at ? Builtin() : maps ? find_filter(text_of(c[at])) : find_test(text_of(c[at]));
  if (c.values.size() > at && !by.run) refuse("'{}' by '{}' is not supported.", name, c[at].text());
  Values all;
  for (const Value& x : r.truth(c[0]) ? r.items(c[0]) : Values()) {
    Call call{{attr   ? part_of(r, x, c[1])
               : path ? part_of(r, x, c.named[0].second)
                      : x},
              path ? decltype(c.named)() : c.named};
    if (by.run) call.values.insert(call.values.end(), c.values.begin() + int64_t(at) + 1, c.values.end());
    const Value y = by.run ? r.apply(by, call) : call[0];
    if (maps || r.truth(y) == name.starts_with("select")) all.push_back(maps ? y : x);
  }
  return r.list(std::move(all), Form::iterator);
}
Value number_of(std::string_view s, bool whole, const Value& otherwise) {
  int64_t i = 0;
  double x = 0;
  const char *from = s.data() + (s.starts_with('+') && !s.starts_with("+-")), *end = s.data() + s.size();
  const auto [stop, error] = std::from_chars(from, end, i);
  if (whole && from != end && stop == end && error == std::errc()) return i;
  const bool is_number = from != end && std::from_chars(from, end, x).ptr == end;
  if (s.find('_') != s.npos || (is_number && whole && !(std::fabs(x) < 9e18)))
    refuse("the number '{}' is not supported.", s);
  return !is_number ? otherwise : whole ? Value(int64_t(x)) : Value(x);
}

Value text_method(Run& r, Name n, Call& c) {
  const std::string s = r.str(c[0]);
  if (n == "upper" || n == "lower" || n == "capitalize" || n == "title") return r.text(cased(s, n[0]));
  if (n.ends_with("strip"))
    return r.text(std::string(strip(s, n[0] != 'r', n[0] != 'l', c[1].given() ? &text_of(c[1]) : nullptr)));
  if (n.ends_with("split"))
    return r.list(parts_of(r, s, c[1].given() ? &text_of(c[1]) : nullptr, whole_of(c[2], -1), n[0] == 'r'));
  if (n == "splitlines") return r.list(lines_of(r, s));
  if (n == "replace") return r.text(replaced(r, s, text_of(c[1]), text_of(c[2]), whole_of(c[3], -1)));
  if (n == "join") return r.text(joined(r, r.items(c[1]), s, true));
  if (n == "count") return int64_t(parts_of(r, s, &text_of(c[1]), -1, false).size()) - 1;
  if (n == "find")
    return s.find(text_of(c[1])) == s.npos ? int64_t(-1) : r.length(r.text(s.substr(0, s.find(text_of(c[1])))));
  if (n == "format") {
    const std::string marker = "{}";
    const Values parts = parts_of(r, s, &marker, -1, false);
    std::string to;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i + 1 < parts.size() && i + 1 >= c.values.size()) refuse("'{}'.format() lacks a value.", s);
      if (parts[i].text().find_first_of("{}") != s.npos || !c.named.empty())
        refuse("'{}'.format() is not supported. Fill '{{}}'.", s);
      to += parts[i].text() + (i + 1 < parts.size() ? r.str(c[i + 1]) : "");
    }
    return r.text(std::move(to));
  }
  const Values all = has_form(c[1], Form::tuple) ? r.items(c[1]) : Values{c[1]};
  return std::ranges::any_of(
      all, [&](const Value& x) { return n == "startswith" ? s.starts_with(text_of(x)) : s.ends_with(text_of(x)); });
}
Value dict_method(Run& r, Name n, Call& c) {
  Items& d = c[0].as<Items>();
  if (n == "keys" || n == "values") return r.list(n == "keys" ? d.keys : d.values, Form::view);
  if (n == "items") return pairs(r, d, Form::view);
  const Value* found = r.find(d, c[1]);
  return found ? *found : c[2].kind == Value::absent ? Value(Value::none) : c[2];
}
Value function(Run& r, Name n, Call& c) {
  if (n == "raise_exception") refuse("the template refuses the conversation: {}", r.str(c[1]));
  if (n == "strftime_now") {
    const std::string& form = text_of(c[1]);
    for (size_t i = form.find('%'); i != form.npos; i = form.find('%', i + 2))
      if (Name("aAbBcdHIjmMpSUwWxXyYGuVeFTDRn%-").find(form.c_str()[i + 1]) == Name::npos)
        refuse("strftime_now('{}') is not supported.", form);
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    std::string s(form.size() * 32 + 1, ' ');
    s.resize(std::strftime(s.data(), s.size(), form.c_str(), ::localtime_r(&now, &local)));
    return r.text(std::move(s));
  }
  if (n == "range") {
    const bool one = c[2].kind == Value::absent;
    const int64_t from = one ? 0 : whole_of(c[1], 0), to = whole_of(c[one ? 1 : 2], 0), step = whole_of(c[3], 1);
    const __int128 count = step == 0 ? INT64_MAX : ((__int128)to - from + step + (step > 0 ? -1 : 1)) / step;
    if (count > 100'000) refuse("range({}, {}, {}) has over 100000 numbers, which Jinja refuses too.", from, to, step);
    Values all;
    for (int64_t i = 0; i < count; ++i) all.push_back(from + i * step);
    return r.list(std::move(all), Form::view);
  }
  if (c.values.size() > 2 || (c.values.size() == 2 && c[1].kind != Value::dict))
    refuse("{}() takes a dict, or named values.", n);
  Items d = c.values.size() > 1 ? c[1].as<Items>() : Items();
  for (const auto& [name, value] : c.named) r.insert(d, r.text(name), value);
  if (n == "dict") return r.dict(std::move(d));
  for (const Value& key : d.keys)
    if (text_of(key).starts_with('_')) refuse("the attribute '{}' of a namespace is refused. Rename it.", key.text());
  r.spaces.push_back(std::make_unique<Items>(std::move(d)));
  return {Value::space, std::shared_ptr<void>(std::shared_ptr<void>(), r.spaces.back().get())};
}
// Filters that compare items by keys.
Value items_filter(Run& r, Name n, Call& c) {
  const Value x = c[0];
  const bool iterator = has_form(x, Form::iterator);
  if ((n == "last" && iterator) || (n == "dictsort" && x.kind != Value::dict) ||
      (n == "items" && x.kind != Value::dict && x.kind != Value::undefined))
    refuse("'{}' of {} is not supported.", n, type_of(x));
  if (n == "items") return pairs(r, x.kind == Value::dict ? x.as<Items>() : Items(), Form::iterator);
  Values all = r.items(x), some, keys;
  if (n == "list") return r.list(std::move(all));
  if (n == "first" && iterator && !all.empty()) x.as<Items>().values.assign(all.begin() + 1, all.end());
  if (n == "first" || n == "last")
    return all.empty() ? r.undefined("an item of nothing") : n == "first" ? all.front() : all.back();
  if (n == "reverse")
    return std::ranges::reverse(all), x.kind == Value::string
                                          ? r.text(joined(r, all, "", true))
                                          : r.list(std::move(all), iterator ? Form::list : Form::iterator);
  const bool plain = n == "join" || n == "sum";
  for (const Value& y : all) {
    const Value key = n == "dictsort" ? y : part_of(r, y, n == "sort" ? c[3] : n == "sum" ? c[1] : c[2]);
    keys.push_back(key.kind == Value::string && !plain && !r.truth(n == "sort" ? c[2] : c[1])
                       ? r.text(cased(key.text(), 'l'))
                       : key);
  }
  if (n == "join") return r.text(joined(r, keys, c[1].kind == Value::absent ? "" : r.str(c[1]), false));
  if (n == "sum")
    return std::accumulate(keys.begin(), keys.end(), Value(int64_t(0)),
                           [&](const Value& a, const Value& b) { return r.binary("+", a, b); });
  if (n == "dictsort") return sorted(r, pairs(r, x.as<Items>(), Form::list).as<Items>().values, keys, false);
  if (n == "sort") return sorted(r, all, keys, r.truth(c[1]));
  if (n != "unique")
    return all.empty() ? r.undefined("an item of nothing") : sorted(r, all, keys, n == "max").as<Items>().values[0];
  for (size_t i = 0; i < all.size(); ++i)
    if (std::none_of(keys.begin(), keys.begin() + int64_t(i), [&](const Value& k) { return r.equal(k, keys[i]); }))
      some.push_back(all[i]);
  return r.list(std::move(some), Form::iterator);
}
Value filter(Run& r, Name n, Call& c) {
  const Value& x = c[0];
  if (n == "length" || n == "count") return r.length(x);
  if (n == "string") return x.kind == Value::string ? x : r.text(r.str(x));
  if (n == "trim") return r.text(std::string(strip(r.str(x), true, true, c[1].given() ? &text_of(c[1]) : nullptr)));
  if (n == "d" || n == "default")
    return x.kind != Value::undefined && !(r.truth(c[2]) && !r.truth(x)) ? x
           : c[1].kind == Value::absent                                  ? r.text("")
                                                                         : c[1];
  if (n == "abs") return r.binary(r.less(x, int64_t(0)) ? "-" : "+", int64_t(0), x);
  if (n == "safe") {
    Value v = r.text(r.str(x));
    return v.safe = true, v;
  }
  if (n == "tojson") {
    JsonForm form{.lines = c[2].given(), .ascii = r.truth(c[1])};
    if (form.lines) form.item = ",", form.indent = padding_of(c[2], 0);
    if (c[3].given()) form.item = text_of(r.item(c[3], int64_t(0))), form.key = text_of(r.item(c[3], int64_t(1)));
    std::string to;
    return r.write(to, x, &form), r.text(std::move(to));
  }
  if (n == "int" || n == "float") {
    if (x.kind == Value::undefined) refuse("{} is not a number.", type_of(x));
    const Value otherwise = c[1].kind != Value::absent ? c[1] : n == "int" ? Value(int64_t(0)) : Value(0.0);
    return x.kind == Value::string || x.is_number()
               ? number_of(strip(r.str(x.kind == Value::boolean ? Value(x.whole) : x)), n == "int", otherwise)
               : otherwise;
  }
  const std::string pad = padding_of(c[1], 4);  // indent filter
  Values lines = lines_of(r, text_of(x) + "\n");
  for (size_t i = 0; i < lines.size(); ++i)
    if (i ? r.truth(c[3]) || r.truth(lines[i]) : r.truth(c[2])) lines[i] = r.text(pad + lines[i].text());
  return r.text(joined(r, lines, "\n", true));
}
Value test(Run& r, Name n, Call& c) {
  const Value& x = c[0];
  const bool sequence =
      x.kind == Value::undefined || x.kind == Value::string || x.kind == Value::dict || x.kind == Value::list;
  if (n == "defined" || n == "undefined") return (x.kind == Value::undefined) == (n[0] == 'u');
  if (n == "sequence" && has_form(x, Form::view)) refuse("'sequence' of a view is not supported.");
  if (n == "iterable" || n == "sequence") return sequence && (n == "iterable" || !has_form(x, Form::iterator));
  if (n == "true" || n == "false") return x.kind == Value::boolean && bool(x.whole) == (n == "true");
  if (n == "odd" || n == "even") return r.equal(r.binary("%", x, int64_t(2)), int64_t(n == "odd"));
  if (n == "divisibleby") return r.equal(r.binary("%", x, c[1]), int64_t(0));
  if (n == "number") return x.is_number();
  constexpr std::pair<Name, Value::Kind> kKinds[] = {{"none", Value::none},    {"string", Value::string},
                                                     {"mapping", Value::dict}, {"integer", Value::integer},
                                                     {"float", Value::number}, {"boolean", Value::boolean}};
  for (const auto& [name, kind] : kKinds)
    if (n == name) return x.kind == kind;
  return r.binary(n, x, c[1]);
}

// A table: "|name parameters|...".
Builtin in(Name table, Name name, Value (*run)(Run&, Name, Call&)) {
  for (size_t at = 0, end = 0; (end = table.find('|', at + 1)) != Name::npos; at = end) {
    const Name entry = table.substr(at + 1, end - at - 1), word = entry.substr(0, entry.find(' '));
    if (word == name) return {word, entry.substr(std::min(entry.size(), word.size() + 1)), run};
  }
  return {};
}
}  // namespace

Builtin find_filter(Name name) {
  const Builtin found[] = {
      in("|length|count|string|trim chars?|d default_value? boolean?|default default_value? boolean?|abs|safe|indent "
         "width? first? blank?|tojson ensure_ascii? indent? separators?|int default?|float default?|",
         name, filter),
      in("|items|list|first|last|reverse|dictsort case_sensitive?|join d? attribute?|sum attribute?|sort reverse? "
         "case_sensitive? attribute?|unique case_sensitive? attribute?|min case_sensitive? attribute?|max "
         "case_sensitive? attribute?|",
         name, items_filter),
      in("|map *|select *|reject *|selectattr *|rejectattr *|", name, chosen),
      in("|upper|lower|capitalize|replace old new count?|", name, text_method)};
  for (const Builtin& b : found)
    if (b.run) return b;
  return {};
}
Builtin find_test(Name name) {
  constexpr Name kWords[][2] = {{"eq", "=="}, {"equalto", "=="}, {"ne", "!="},         {"lt", "<"}, {"lessthan", "<"},
                                {"le", "<="}, {"gt", ">"},       {"greaterthan", ">"}, {"ge", ">="}};
  for (const auto& [word, op] : kWords) name = name == word ? op : name;
  return in(
      "|defined|undefined|none|string|mapping|iterable|sequence|number|integer|float|boolean|true|false|odd|even|"
      "divisibleby num|in seq|== other|!= other|< other|<= other|> other|>= other|",
      name, test);
}
Builtin find_function(Name name) {
  if (name == "cycler" || name == "joiner" || name == "lipsum") refuse("{}() is not supported.", name);
  return in("|dict *|namespace *|raise_exception message|range start stop? step?|strftime_now format|", name, function);
}
Builtin find_method(const Value& x, Name name) {
  if (x.kind == Value::dict) return in("|get key default?|items|keys|values|", name, dict_method);
  if (x.kind != Value::string) return {};
  return in(
      "|upper|lower|capitalize|title|strip chars?|lstrip chars?|rstrip chars?|split sep? maxsplit?|rsplit sep? "
      "maxsplit?|splitlines|replace old new count?|join iterable|count sub|find sub|format *|startswith "
      "prefix|endswith suffix|",
      name, text_method);
}

}  // namespace tg::jinja
