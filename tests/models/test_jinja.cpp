// models/jinja/jinja.h against jinja2 in transformers (tests/data/make_jinja.py); messages, limits, names.
#include "support/helpers.h"

#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/jinja/jinja.h>

using namespace tg;

namespace {
std::string jinja_text(const std::string& text, const Json& context = Json::object()) {
  return JinjaTemplate(text).render(context).text;
}
std::string jinja_error(const std::string& text) {
  try {
    return "renders " + jinja_text(text).substr(0, 100);
  } catch (const Error& e) {
    return e.what();
  }
}
}  // namespace

TEST_CASE("jinja: templates render as in transformers, or the Error says what is not supported") {
  const MappedFile file(TG_TEST_DATA "/jinja.json");
  const Json fixture = detail::parse_json(file.text(), "test", "jinja.json", 20);
  size_t unsupported = 0;
  for (const Json& c : fixture["cases"]) {
    const auto text = c[0].get<std::string>();
    CAPTURE(text);
    std::string error;
    JinjaTemplate::Rendered got;
    try {
      const JinjaTemplate program(text), copy = program;
      CHECK(copy.text() == text);
      got = copy.render(fixture["context"]);
      CHECK(program.render(fixture["context"]).text == got.text);
    } catch (const Error& e) {
      error = e.what();
    }
    if (c.size() == 1) {
      CHECK(error.starts_with("[jinja] "));
    } else if (error.empty()) {
      CHECK(got.text == c[1].get<std::string>());
      REQUIRE(got.generated.size() == c[2].size());
      for (size_t i = 0; i < got.generated.size(); ++i)
        CHECK(std::vector{got.generated[i].first, got.generated[i].second} == c[2][i].get<std::vector<size_t>>());
    } else {
      CHECK(error.find("not supported") != error.npos);
      ++unsupported;
    }
  }
  CHECK(unsupported == 63);  // iterators and views where Python shows them
}

TEST_CASE("jinja: errors name the line, and the message of raise_exception") {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ x\n.y }}", "undefined 'x' has no attribute 'y'"},
      {"a\n{% if 1 %}{{ raise_exception('roles') }}{% endif %}", "roles"},
      {"\n{% include 'x' %}", "the tag 'include' is not supported"},
      {"\n{{ 1|nope }}", "the filter 'nope' is not supported"},
      {"\n{{ 1 is nope }}", "the test 'nope' is not supported"},
      {"\n{{ 'a' ? }}", "'?' is not supported"},
      {"\n{% if 1 %}", "endif"},
      {"\n{{ 1", "lacks its end"},
      {"\n{{ [1 }}", "lacks its end"},
      {"\n{% break %}", "outside of a loop"},
      {"\n{{ '\\N{DASH}' }}", "escape"},
      {"\n{% set x %}{% generation %}{% endgeneration %}{% endset %}", "generation"},
  };
  for (const auto& [text, says] : cases) {
    const std::string error = jinja_error(text);
    CAPTURE(error);
    CHECK(error.find(says) != error.npos);
    CHECK(error.ends_with("at line 2 of the chat template"));
  }
  CHECK(jinja_error("\xff").find("UTF-8") != std::string::npos);
  CHECK_THROWS_AS(JinjaTemplate("").render(Json::array()), Error);
  CHECK(jinja_error("{% if 0 %}{{ 1|nope }}{% endif %}{{ '\u2003é\u2003'|trim }}") == "renders é");  // Jinja's trim
}

TEST_CASE("jinja: limits of nesting, work and memory are Errors") {
  const auto times = [](size_t n, const std::string& s, std::string to = "") {
    for (size_t i = 0; i < n; ++i) to += s;
    return to;
  };
  const std::string loop = "{% for i in range(99999) %}", ends = "{% endfor %}";
  for (const std::string& text :
       {times(9999, "{{ ["),
        "{{ " + times(9999, "(") + "1" + times(9999, ")") + " }}",
        "{% set " + times(999999, "(") + "x" + times(999999, ")") + " = 1 %}",
        "{{ 1" + times(9999, " + 1") + " }}",
        "{{ 1" + times(9999, "|abs") + " }}",
        "{{ x" + times(9999, ".x") + " }}",
        "{{ " + times(9999, "-") + "1 }}",
        "{{ " + times(9999, "not ") + "1 }}",
        times(999, "{% if 1 %}"),
        "{{ 1" + times(9999, " if 1 else 1") + " }}",
        times(9999, "{% if 1 %}") + times(9999, "{% endif %}"),
        std::string("{{ range(10 ** 12) }}"),
        std::string("{{ 'a' * 10 ** 9 }}"),
        std::string("{{ [1] * 10 ** 9 }}"),
        std::string("{{ '%s'|indent(10 ** 9) ~ 'a' * 10 ** 9 }}"),
        loop + loop + loop + ends + ends + ends,
        "{% set n = namespace(x='a') %}" + loop + "{% set n.x = n.x ~ n.x %}" + ends,
        "{% set n = namespace(x=[]) %}" + loop + "{% set n.x = [n.x, n.x] %}" + ends,
        "{% set n = namespace(x='ab') %}" + loop + "{% set n.x = n.x|replace('a', 'aa') %}" + ends,
        std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        std::string("{% set n = namespace() %}{% set n.n = n %}{{ n }}"),
        std::string("{{ 9223372036854775807 + 1 }}"),
        std::string("{{ ('x' * 100000).join(range(100000)|map('string')) }}")})
    CHECK(jinja_error(text).starts_with("[jinja] "));
  CHECK(jinja_error("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n is defined }}") == "renders True");
}

TEST_CASE("jinja: mentions() has names, attributes and literal keys") {
  const JinjaTemplate t("{{ tools }}{{ m.content }}{{ m['tool_calls'] }}{{ m.get('name') }}{{ 'text' }}{# docs #}");
  for (const char* name : {"tools", "m", "content", "tool_calls", "name"}) CHECK(t.mentions(name));
  for (const char* name : {"text", "docs", "conten"}) CHECK(!t.mentions(name));
}
