#include <tapegrad/core/util/scoped_value.h>
#include <tapegrad/models/jinja/jinja.h>
#include <tapegrad/models/jinja/value.h>
#include <tapegrad/models/tokenizers/regex.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

namespace tg {
namespace jinja {
namespace {
using Flow = Run::Flow;
using Expr = std::function<Value(Run&)>;
using Step = std::function<void(Run&)>;
using Target = std::function<void(Run&, Value)>;

struct Deeper : ScopedValue<size_t> {
  explicit Deeper(size_t& n, size_t most = SIZE_MAX) : ScopedValue(n, n + 1) {
    if (n > most) refuse("the template or its macros are nested deeper than {}. Flatten it.", most);
  }
};
struct Inner : ScopedValue<std::shared_ptr<Scope>> {  // a block's scope
  Inner(Run& r, std::shared_ptr<Scope> of) : ScopedValue(r.scope, std::make_shared<Scope>(std::move(of))) {}
};
void check_row(size_t n, std::string_view what) {
  if (n == kMostInRow) refuse("an expression has over {} {} in a row. Split it.", kMostInRow, what);
}
template <class F> Expr guarded(F f) {
  return [f = std::move(f)](Run& r) -> Value {
    const Deeper guard(r.deep, kDeepestRun);
    r.charge(1);
    return f(r);
  };
}
void set(Run& r, const std::string& name, Value v) {
  for (auto& [n, value] : r.scope->names)
    if (n == name) return void(value = std::move(v));
  r.scope->names.emplace_back(name, std::move(v));
}
Value look_up(Run& r, const std::string& name) {
  for (const Scope* s = r.scope.get(); s; s = s->parent.get())
    for (const auto& [n, value] : s->names)
      if (n == name) return value;
  if (const Value* found = r.find(r.context, r.text(name))) return *found;
  const Builtin b = find_function(name);
  return b.run ? r.function(b, Value()) : r.undefined("'" + name + "'");
}
Value call(Run& r, const Value& f, Call c) {
  if (f.kind != Value::callable) refuse("{} cannot be called.", type_of(f));
  const auto held = std::static_pointer_cast<Function>(f.object);
  return (*held)(r, c);
}
std::string captured(Run& r, const Step& body) {
  std::string outer = std::exchange(r.out, "");
  body(r);
  return std::exchange(r.out, std::move(outer));
}

struct Token {
  // D data, V v of {{ }}, B b of {% %}, N name, S string, F number, O operator, E end
  char kind;
  std::string text;
  int line;
};
std::string unescaped(std::string_view s) {
  std::string to;
  for (size_t i = 0; i < s.size(); ++i) {
    const size_t k = s[i] == '\\' ? std::string_view("nrt\\'\"").find(s[i + 1]) : 0;
    uint32_t code = 0;
    if (s[i] != '\\')
      to += s[i];
    else if (k != s.npos)
      to += "\n\r\t\\'\""[k], ++i;
    else if (s[++i] == 'u' &&
             std::from_chars(s.data() + i + 1, s.data() + std::min(i + 5, s.size()), code, 16).ptr ==
                 s.data() + i + 5 &&
             (code < 0xD800 || code > 0xDFFF))
      detail::append_utf8(to, code), i += 4;
    else
      refuse("the escape '\\{}' is not supported. Use '\\u' with 4 digits.", s[i]);
  }
  return to;
}
std::vector<Token> tokens_of(std::string_view raw, int& line) {
  static const detail::Regex kTokens(
      R"([0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?|[A-Za-z_][A-Za-z0-9_]*|'(?:[^'\\]|\\(?:\s|\S))*')"
      R"(|"(?:[^"\\]|\\(?:\s|\S))*"|//|\*\*|[=!<>]=|[\-+/*%~\[\](){}<>=.:|,;])");
  if (detail::invalid_bytes(raw)) refuse("the template is not UTF-8.");
  std::string s;
  for (size_t i = 0; i < raw.size(); ++i)
    if (raw[i] != '\r' || !raw.substr(i + 1).starts_with('\n')) s += raw[i] == '\r' ? '\n' : raw[i];
  if (s.ends_with('\n')) s.pop_back();
  std::vector<Token> all;
  size_t at = 0;
  bool starts = true;  // line start
  const auto move = [&](size_t to) {
    line += int(std::count(s.begin() + int64_t(at), s.begin() + int64_t(to), '\n')), at = to;
  };
  const auto after_space = [&](size_t from) {
    return s.size() - strip(std::string_view(s).substr(from), true, false).size();
  };
  // Text before a tag: '-' strips it; a block strips its indentation.
  const auto data = [&](size_t tag, bool block) {
    std::string_view text = std::string_view(s).substr(at, tag - at);
    const size_t begin = text.rfind('\n') + 1;
    const char sign = tag + 2 < s.size() ? s[tag + 2] : ' ';
    if (sign == '-')
      text = strip(text, false, true);
    else if (sign != '+' && block && (begin > 0 || starts) && strip(text.substr(begin)).empty())
      text = text.substr(0, begin);
    all.push_back({'D', std::string(text), line});
    move(std::min(s.size(), tag + 2 + (tag < s.size() && (sign == '-' || sign == '+'))));
  };
  const auto close = [&](size_t end, bool block) {  // tag end: "}}", "%}" or "#}"
    const bool minus = s[end - 1] == '-', newline = block && s[end - 1] != '+' && s.compare(end + 2, 1, "\n") == 0;
    move(minus ? after_space(end + 2) : end + 2 + newline);
    starts = s[at - 1] == '\n';
  };
  while (at < s.size()) {
    size_t tag = s.find('{', at);
    while (tag != s.npos && (tag + 1 == s.size() || !std::strchr("{%#", s[tag + 1]))) tag = s.find('{', tag + 1);
    if (tag == s.npos) {
      all.push_back({'D', s.substr(at), line});
      break;
    }
    const bool variable = s[tag + 1] == '{', comment = s[tag + 1] == '#';
    data(tag, !variable);
    size_t end = comment ? s.find("#}", at) : at;
    std::string open;
    for (; !comment && end < s.size(); ++end) {
      const char c = s[end];
      if (open.empty() && s.compare(end, 2, variable ? "}}" : "%}") == 0) break;
      if (const size_t k = std::string_view("([{").find(c); k != std::string_view::npos)
        open += ")]}"[k];
      else if (!open.empty() && c == open.back())
        open.pop_back();
      if (c == '\'' || c == '"')
        for (++end; end < s.size() && s[end] != c; ++end) end += s[end] == '\\';
    }
    if (end >= s.size()) refuse("a tag or a comment lacks its end.");
    if (comment && end == at) move(++end - 1), all.push_back({'D', "", line});
    const bool is_signed = end > at && (s[end - 1] == '-' || (s[end - 1] == '+' && !variable));
    const std::string_view inside = std::string_view(s).substr(at, comment ? 0 : end - at - is_signed);
    if (!variable && strip(inside) == "raw") {
      close(end, false);
      for (end = s.find("{%", at); end != s.npos; end = s.find("{%", end + 1))
        if (const size_t word = after_space(end + 2 + (s[end + 2] == '-' || s[end + 2] == '+'));
            s.compare(word, 6, "endraw") == 0)
          break;
      if (end == s.npos || (tag = s.find("%}", end)) == s.npos) refuse("'raw' lacks 'endraw'.");
      data(end, true);
      close(tag, true);
      continue;
    }
    if (!comment) all.push_back({variable ? 'V' : 'B', "", line});
    kTokens.split(inside, [&](size_t from, size_t to, bool matched) {
      const std::string_view t = inside.substr(from, to - from);
      const char c = t[0], kind = c >= '0' && c <= '9'                               ? 'F'
                                  : c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') ? 'N'
                                  : c == '\'' || c == '"'                            ? 'S'
                                                                                     : 'O';
      if (!matched && !strip(t).empty()) refuse("'{}' is not supported in an expression.", strip(t));
      if (matched) all.push_back({kind, kind == 'S' ? unescaped(t.substr(1, t.size() - 2)) : std::string(t), line});
      line += int(std::ranges::count(t, '\n'));
    });
    if (!comment) all.push_back({variable ? 'v' : 'b', "", line});
    at += inside.size();
    close(end, !variable);
  }
  all.push_back({'E', "", line});
  return all;
}

struct Arguments {
  std::vector<Expr> values;
  std::vector<std::string> names;  // last names
  Call operator()(Run& r, Values before = {}) const {
    Call c{std::move(before), {}};
    const size_t n = values.size() - names.size();
    for (size_t i = 0; i < n; ++i) c.values.push_back(values[i](r));
    for (size_t i = n; i < values.size(); ++i) c.named.emplace_back(names[i - n], values[i](r));
    return c;
  }
};
struct Macro {
  std::string name, params = {};
  std::vector<std::string> names = {};
  std::vector<Expr> defaults = {};  // null: none
  Step body = {};
  bool takes_caller = false;
  Value operator()(Run& r, Call& c, const std::shared_ptr<Scope>& scope) const {
    const Deeper guard(r.deep, kDeepestRun);
    const Inner inner(r, scope);
    if (c.values.size() > names.size())
      refuse("the macro '{}' has {} arguments. It takes {}.", name, c.values.size(), names.size());
    c.bind(name, params, 0);
    for (size_t i = 0; i < names.size(); ++i)
      set(r, names[i],
          c[i].kind != Value::absent ? c[i]
          : defaults[i]              ? defaults[i](r)
                                     : r.undefined("the argument '" + names[i] + "'"));
    for (const auto& [key, value] : c.named)
      key == "caller" && takes_caller ? set(r, key, value) : refuse("the macro '{}' has no argument '{}'.", name, key);
    return r.text(captured(r, body));
  }
};

struct Parser {
  std::vector<Token> tokens;
  std::set<std::string, std::less<>>& mentioned;
  int& line;
  size_t at = 0, deep = 0, captures = 0, loops = 0, soft = 0;
  bool caller = false;

  const Token& now() const { return tokens[at]; }
  bool is(std::string_view text, size_t ahead = 0) const {
    const Token& t = tokens[std::min(at + ahead, tokens.size() - 1)];
    return (t.kind == 'N' || t.kind == 'O') && t.text == text;
  }
  const Token& next() { return line = now().line, tokens[at + 1 < tokens.size() ? at++ : at]; }
  bool skip(std::string_view text) { return is(text) && (next(), true); }
  [[noreturn]] void unexpected(std::string_view wanted) {
    line = now().line;
    refuse("{} is expected where '{}' is.", wanted,
           now().text.empty() ? "the end of a tag or of the template" : now().text);
  }
  void expect(std::string_view text) {
    if (!skip(text)) unexpected(text);
  }
  std::string kind(char k, std::string_view wanted) { return now().kind == k ? next().text : (unexpected(wanted), ""); }

  template <class F> void listed(std::string_view end, F each) {
    for (bool first = true; !skip(end); first = false) {
      if (!first) expect(",");
      if (!first && skip(end)) return;
      each();
    }
  }
  Expr all_of(std::vector<Expr> all, Form form) {
    return guarded([=](Run& r) {
      Values v;
      for (const Expr& e : all) v.push_back(e(r));
      return r.list(std::move(v), form);
    });
  }
  Expr tuple(bool choose = true) {
    std::vector<Expr> all(1, choose ? expression() : level(0));
    const bool comma = is(",");
    while (skip(",") && now().kind != 'v' && now().kind != 'b' && !is(")"))
      all.push_back(choose ? expression() : level(0));
    return comma ? all_of(std::move(all), Form::tuple) : all[0];
  }
  Expr expression() {
    const Deeper guard(deep, kMostNested);
    Expr a = level(0);
    while (skip("if")) {
      const Deeper softly(soft);
      Expr condition = level(0),
           other = skip("else") ? expression() : [](Run& r) { return r.undefined("the other value of 'if'"); };
      a = guarded([=](Run& r) { return r.truth(condition(r)) ? a(r) : other(r); });
    }
    return a;
  }
  Expr level(size_t n) {
    constexpr std::string_view kOps[] = {" or ", " and ", "", " + - ", " ~ ", " * / // % ", " ** "};
    if (n == 2 || n == 7) return n == 2 ? comparison() : unary(true);
    Expr a = level(n + 1);
    for (size_t chain = 0; now().kind == (n < 2 ? 'N' : 'O') && kOps[n].find(" " + now().text + " ") != kOps[n].npos;
         ++chain) {
      check_row(chain, "operators");
      const std::string op = next().text;
      a = guarded([n, op, a = std::move(a), b = level(n + 1)](Run& r) {
        const Value x = a(r);
        return n > 1 ? r.binary(op, x, b(r)) : r.truth(x) == (n == 0) ? x : b(r);
      });
    }
    return a;
  }
  Expr comparison() {
    const Deeper guard(deep, kMostNested);
    if (skip("not")) return guarded([a = comparison()](Run& r) { return Value(!r.truth(a(r))); });
    Expr a = level(3);
    std::vector<std::pair<std::string, Expr>> rest;
    for (;;) {
      const bool no = is("not") && is("in", 1);
      if (no) next();
      if (!is("in") && !is("==") && !is("!=") && !is("<") && !is("<=") && !is(">") && !is(">=")) break;
      const std::string op = (no ? "not " : "") + next().text;
      rest.emplace_back(op, level(3));
    }
    if (rest.empty()) return a;
    return guarded([=](Run& r) {
      Value x = a(r), result;
      for (const auto& [op, b] : rest) {
        const Value y = b(r);
        if (result = r.binary(op, x, y); !r.truth(result)) break;
        x = y;
      }
      return result;
    });
  }
  Expr unary(bool filters) {
    const Deeper guard(deep, kMostNested);
    const bool sign = is("-") || is("+");
    const int64_t factor = is("-") ? -1 : 1;
    if (sign) next();
    Expr a = sign ? unary(false) : primary();
    if (sign)
      a = guarded([factor, b = std::move(a)](Run& r) {
        const Value x = b(r);
        return r.binary(x.is_number() ? "*" : "-", x, factor);
      });
    a = postfix(std::move(a));
    for (size_t chain = 0; filters && (is("|") || is("is") || is("(")); ++chain) {
      check_row(chain, "filters");
      a = skip("|") ? filter(std::move(a)) : skip("is") ? test(std::move(a)) : postfix(std::move(a));
    }
    return a;
  }
  Expr primary() {
    const Deeper guard(deep, kMostNested);
    const Token t = next();
    if (t.kind == 'N') {
      if (t.text == "true" || t.text == "True" || t.text == "false" || t.text == "False")
        return [v = Value((t.text[0] | 32) == 't')](Run&) { return v; };
      if (t.text == "none" || t.text == "None") return [](Run&) { return Value(Value::none); };
      if (t.text == "self" || t.text == "super" || t.text == "varargs" || t.text == "kwargs")
        refuse("'{}' is not supported.", t.text);
      caller |= t.text == "caller";
      mentioned.insert(t.text);
      return guarded([name = t.text](Run& r) { return look_up(r, name); });
    }
    if (t.kind == 'S') {
      std::string all = t.text;
      while (now().kind == 'S') all += next().text;
      return [v = Value(Value::string, std::make_shared<std::string>(all))](Run&) { return v; };
    }
    if (t.kind == 'F') {
      int64_t whole = 0;
      const char *from = t.text.data(), *end = from + t.text.size();
      const bool is_whole = std::from_chars(from, end, whole).ptr == end;
      if (is_whole && std::to_string(whole) != t.text) refuse("the integer {} is not supported.", t.text);
      return [v = is_whole ? Value(whole) : Value(std::strtod(from, nullptr))](Run&) { return v; };
    }
    if (t.kind == 'O' && t.text == "(") {
      if (skip(")")) return all_of({}, Form::tuple);
      Expr inner = tuple();
      return expect(")"), inner;
    }
    std::vector<Expr> keys, values;
    if (t.kind == 'O' && t.text == "[")
      return listed("]", [&] { values.push_back(expression()); }), all_of(std::move(values), Form::list);
    if (t.kind != 'O' || t.text != "{") --at, unexpected("an expression");
    listed("}", [&] { keys.push_back(expression()), expect(":"), values.push_back(expression()); });
    return guarded([=](Run& r) {
      Items d;
      for (size_t i = 0; i < keys.size(); ++i) {
        const Value key = keys[i](r);
        r.insert(d, key, values[i](r));
      }
      return r.dict(std::move(d));
    });
  }
  Expr postfix(Expr a) {
    for (size_t chain = 0; is(".") || is("[") || is("("); ++chain) {
      check_row(chain, "attributes");
      if (is("(")) {
        a = guarded([a = std::move(a), arguments = arguments()](Run& r) {
          const Value f = a(r);
          return call(r, f, arguments(r));
        });
      } else if (is(".") && tokens[at + 1].kind == 'F') {
        next();
        a = guarded([a = std::move(a), key = primary()](Run& r) {
          const Value x = a(r);
          return r.item(x, key(r));
        });
      } else if (skip(".")) {
        const std::string name = kind('N', "a name");
        mentioned.insert(name);
        if (name == "get" && is("(") && tokens[at + 1].kind == 'S') mentioned.insert(tokens[at + 1].text);
        a = guarded([a = std::move(a), name](Run& r) { return r.attribute(a(r), name); });
      } else {
        next();
        if (now().kind == 'S' && is("]", 1)) mentioned.insert(now().text);
        Expr parts[3];
        size_t n = 0;
        do {
          if (!is(":") && !is("]")) parts[n] = expression();
        } while (++n < 3 && skip(":"));
        expect("]");
        if (n == 1 && !parts[0]) unexpected("an expression");
        a = guarded([a = std::move(a), n, b = parts[0], c = parts[1], d = parts[2]](Run& r) {
          const auto part = [&](const Expr& e) { return e ? e(r) : Value(Value::none); };
          const Value x = a(r), from = part(b), to = part(c);
          return n == 1 ? r.item(x, from) : r.slice(x, from, to, part(d));
        });
      }
    }
    return a;
  }
  Arguments arguments() {
    Arguments to;
    expect("(");
    listed(")", [&] {
      const bool by_name = now().kind == 'N' && is("=", 1);
      if (by_name) to.names.push_back(next().text), next();
      if (is("*") || is("**") || (!by_name && !to.names.empty())) unexpected("a named argument");
      to.values.push_back(expression());
    });
    return to;
  }
  Expr filter(Expr of) {
    const std::string name = kind('N', "the name of a filter");
    const Builtin f = find_filter(name);
    if (!f.run && !soft) refuse("the filter '{}' is not supported.", name);
    const bool attr = name.ends_with("attr") && tokens[at + 1].kind == 'S';
    if (attr) mentioned.insert(tokens[at + 1].text);
    return guarded([=, of = std::move(of), arguments = is("(") ? arguments() : Arguments()](Run& r) {
      if (!f.run) refuse("the filter '{}' is not supported.", name);
      Values before = {of(r)};
      return r.apply(f, arguments(r, std::move(before)));
    });
  }
  Expr test(Expr of) {
    const bool no = skip("not");
    const std::string name = kind('N', "the name of a test");
    const Builtin f = find_test(name);
    if (!f.run) refuse("the test '{}' is not supported.", name);
    Arguments more;
    if (is("("))
      more = arguments();
    else if ((std::strchr("NSF", now().kind) || is("[") || is("{")) && !is("else") && !is("or") && !is("and"))
      more.values.push_back(postfix(is("is") ? (unexpected("an operator"), Expr()) : primary()));
    return guarded([=](Run& r) { return Value(r.truth(r.apply(f, more(r, {of(r)}))) != no); });
  }

  Target target() {
    const Deeper guard(deep, kMostNested);
    std::vector<Target> all;
    bool comma = false;
    do {
      if (!all.empty() && (is("in") || is("=") || now().kind == 'b')) break;
      if (skip("(")) {
        all.push_back(target());
        expect(")");
        continue;
      }
      const std::string name = kind('N', "a name");
      if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None")
        refuse("'{}' cannot be set.", name);
      if (!skip(".")) {
        all.push_back([name](Run& r, Value v) { set(r, name, std::move(v)); });
        continue;
      }
      all.push_back([name, key = kind('N', "a name")](Run& r, Value v) {
        const Value space = look_up(r, name);
        const bool macro = v.kind == Value::callable || space.kind != Value::space || space.object.use_count() > 0;
        if (macro || key.starts_with('_'))
          refuse("'{}.{}' cannot be set. Only a namespace() has such attributes, and not of functions.", name, key);
        r.insert(space.as<Items>(), r.text(key), std::move(v));
      });
    } while (skip(",") && (comma = true));
    if (!comma) return all[0];
    return [all](Run& r, const Value& v) {
      const Values values = r.items(v);
      if (values.size() != all.size()) refuse("{} values are set to {} names.", values.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) all[i](r, values[i]);
    };
  }
  Step block(const std::vector<std::string_view>& ends) {
    kind('b', "the end of a tag");
    return body(ends);
  }
  Step captured_block(std::string_view end) {
    const Deeper capture(captures);
    return block({end});
  }
  // Statements until a tag of `ends`, skipped if the only one.
  Step body(const std::vector<std::string_view>& ends) {
    const Deeper guard(deep, kMostNested);
    std::vector<Step> all;
    while (now().kind != 'E') {
      const Token t = next();
      if (t.kind == 'B' && std::ranges::any_of(ends, [&](std::string_view e) { return is(e); })) {
        if (ends.size() == 1) next();
        return steps_of(std::move(all));
      }
      if (t.kind == 'D') {
        all.push_back([text = t.text](Run& r) { r.charge(1 + text.size() / 32), r.out += text; });
        continue;
      }
      Step step;
      if (t.kind == 'V')
        step = [e = tuple()](Run& r) { r.out += r.str(e(r)); };
      else
        step = statement(kind('N', "a tag"));
      kind(t.kind == 'V' ? 'v' : 'b', "the end of a tag");
      all.push_back([step = std::move(step), begin = t.line](Run& r) {
        const Deeper inner(r.deep, kDeepestRun);
        r.charge(1);
        r.line = begin;
        step(r);
      });
    }
    if (!ends.empty()) unexpected(ends.back());
    return steps_of(std::move(all));
  }
  static Step steps_of(std::vector<Step> all) {
    return [all = std::move(all)](Run& r) {
      for (size_t i = 0; i < all.size() && r.flow == Flow::next; ++i) all[i](r);
    };
  }
  std::shared_ptr<Macro> macro(std::string name, std::string_view end, std::pair<Expr, Arguments>* called = nullptr) {
    auto m = std::make_shared<Macro>(Macro{std::move(name)});
    const bool outer_caller = std::exchange(caller, false);
    const ScopedValue<size_t> no_loop(loops, 0), not_soft(soft, 0);
    if (!called || is("(")) {
      expect("(");
      listed(")", [&] {
        m->names.push_back(kind('N', "a name"));
        m->params += m->names.back() + "? ";
        m->defaults.push_back(skip("=") ? expression() : Expr());
      });
    }
    if (called) called->first = primary(), called->second = arguments();
    m->body = captured_block(end);
    m->takes_caller = caller;
    caller |= outer_caller;
    return m;
  }
  static Value bound(Run& r, const std::shared_ptr<Macro>& m) {
    r.held.push_back(r.scope);
    return r.function([m, scope = std::weak_ptr(r.scope)](Run& in, Call& c) { return (*m)(in, c, scope.lock()); });
  }
  Step statement(const std::string& tag) {
    if (tag == "if") {
      std::vector<std::pair<Expr, Step>> all;
      const Deeper softly(soft);
      for (std::string word = tag; word == "if" || word == "elif" || word == "else"; word = next().text) {
        Expr when = word == "else" ? [](Run&) { return Value(true); } : tuple(false);
        all.emplace_back(std::move(when), block({word == "else" ? "endif" : "elif", "else", "endif"}));
      }
      return [=](Run& r) {
        for (const auto& [when, then] : all)
          if (r.truth(when(r))) return then(r);
      };
    }
    if (tag == "for") return loop();
    if (tag == "break" || tag == "continue") {
      if (!loops) refuse("'{}' is outside of a loop.", tag);
      return [flow = tag == "break" ? Flow::stop : Flow::again](Run& r) { r.flow = flow; };
    }
    if (tag == "set") {
      Target to = target();
      if (skip("=")) return [to, e = tuple()](Run& r) { to(r, e(r)); };
      Step inner = captured_block("endset");
      return [=](Run& r) {
        const Value v = [&] {
          const Inner scope(r, r.scope);
          return r.text(captured(r, inner));
        }();
        if (r.flow == Flow::next) to(r, v);
      };
    }
    if (tag == "macro") {
      const std::string name = kind('N', "a name");
      return [name, m = macro(name, "endmacro")](Run& r) { set(r, name, bound(r, m)); };
    }
    if (tag == "call") {
      std::pair<Expr, Arguments> called;
      const auto m = macro("caller", "endcall", &called);
      return [=](Run& r) {
        const Value f = called.first(r);
        Call c = called.second(r);
        c.named.emplace_back("caller", bound(r, m));
        r.out += r.str(call(r, f, std::move(c)));
      };
    }
    if (tag == "generation") {
      if (captures) refuse("'generation' within a macro or another tag that captures text is not supported.");
      Step inner = captured_block("endgeneration");
      return [=](Run& r) {
        const Inner scope(r, r.scope);
        const size_t from = r.out.size();
        inner(r);
        r.flow = Flow::next;
        r.generated.emplace_back(from, r.out.size());
      };
    }
    refuse("the tag '{}' is not supported.", tag);
  }
  Step loop() {
    Target to = target();
    expect("in");
    Expr of = tuple(false), when = skip("if") ? expression() : Expr();
    const ScopedValue<size_t> not_soft(soft, 0);
    ++loops;
    Step inner = block({"endfor", "else"});
    --loops;
    Step other = next().text == "else" ? block({"endfor"}) : [](Run&) {};
    return [=, uses_loop = mentioned.contains("loop")](Run& r) {
      Values all;
      for (const Value& x : r.items(of(r))) {
        const Inner scope(r, r.scope);
        if (when) to(r, x);
        if (!when || r.truth(when(r))) all.push_back(x);
      }
      // Like Jinja, `else` ignores iterations ended by `continue`.
      bool ended = false;
      for (size_t i = 0; i < all.size(); ++i) {
        const Inner scope(r, r.scope);
        const auto k = int64_t(i), n = int64_t(all.size());
        to(r, all[i]);
        if (uses_loop) {
          Items l;
          const std::pair<const char*, Value> attributes[] = {
              {"index", k + 1},
              {"index0", k},
              {"revindex", n - k},
              {"revindex0", n - k - 1},
              {"length", n},
              {"first", k == 0},
              {"last", k + 1 == n},
              {"previtem", i ? all[i - 1] : r.undefined("the item before the first")},
              {"nextitem", k + 1 < n ? all[i + 1] : r.undefined("the item after the last")}};
          for (const auto& [key, value] : attributes) l.keys.push_back(r.text(key)), l.values.push_back(value);
          set(r, "loop", {Value::space, std::make_shared<Items>(std::move(l))});
        }
        inner(r);
        const Flow flow = std::exchange(r.flow, Flow::next);
        if (flow == Flow::stop) break;
        ended |= flow == Flow::next;
      }
      if (!ended) other(r);
    };
  }
};

template <class F> auto located(const int& line, const std::string& name, F f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}\n    at line {} of the {}", e.what(), line, name), e.scoped());
  }
}
}  // namespace
}  // namespace jinja

struct JinjaTemplate::Parsed {
  std::string text, name;
  std::set<std::string, std::less<>> mentioned = {};
  std::function<void(jinja::Run&)> body = {};
};

JinjaTemplate::JinjaTemplate(std::string text, std::string name) {
  auto parsed = std::make_shared<Parsed>(Parsed{std::move(text), std::move(name)});
  int line = 1;
  jinja::located(line, parsed->name, [&] {
    jinja::Parser parser{jinja::tokens_of(parsed->text, line), parsed->mentioned, line};
    parsed->body = parser.body({});
  });
  parsed_ = std::move(parsed);
}
JinjaTemplate::Rendered JinjaTemplate::render(const Json& context) const {
  jinja::Run run;
  return jinja::located(run.line, parsed_->name, [&] {
    if (!context.is_object()) jinja::refuse("the context is {}, not an object.", context.type_name());
    run.context = run.from(context).as<jinja::Items>();
    parsed_->body(run);
    return Rendered{std::move(run.out), std::move(run.generated)};
  });
}
bool JinjaTemplate::mentions(std::string_view name) const { return parsed_->mentioned.contains(name); }
const std::string& JinjaTemplate::text() const { return parsed_->text; }

}  // namespace tg
