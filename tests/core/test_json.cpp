// Json: building, reading, text and its limits, refusals.
#include <tapegrad/core/io/json.h>

#include <cmath>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

TEST_CASE("json: braces make objects of pairs with names, else arrays; text keeps the order of keys") {
  const Json j = {{"z", 1}, {"a", {1.5, true, nullptr}}, {"names", {"x", "y", "z"}}, {"inner", {{"k", -2}}}};
  CHECK(detail::text_of(j) == R"({"z":1,"a":[1.5,true,null],"names":["x","y","z"],"inner":{"k":-2}})");
  CHECK(detail::text_of({{"a", Json::array()}, {"o", Json::object()}, {"n", Json()}}, 1) ==
        "{\n \"a\": [],\n \"o\": {},\n \"n\": null\n}");
  CHECK(detail::text_of({{"a", {1, {{"b", 2}}}}}, 2) == "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}");
  CHECK(detail::text_of(std::map<std::string, int>{{"b", 1}, {"a", 2}}) == R"({"a":2,"b":1})");
  CHECK(detail::text_of(Json::array({"key", 1})) == R"(["key",1])");
  CHECK(detail::text_of(std::vector<std::string>{"a", "b"}) == R"(["a","b"])");
  CHECK(detail::text_of(Json(std::string("caf\xe9"))) == "\"caf\xef\xbf\xbd\"");
}
TEST_CASE("json: every kind of value reads back what was written") {
  const Json j = {{"least", INT64_MIN}, {"most", UINT64_MAX}, {"x", 0.1}, {"no", false}, {"text", "a\"\n\u00e9"}};
  const Json back = detail::own_json(detail::text_of(j));
  CHECK(back == j);
  CHECK(back["least"].get<int64_t>() == INT64_MIN);
  CHECK(back["most"].get<uint64_t>() == UINT64_MAX);
  CHECK(back["most"].is_number_unsigned());
  CHECK_FALSE(back["least"].is_number_unsigned());
  CHECK(back["x"].get<double>() == 0.1);
  CHECK(back["no"].get<bool>() == false);
  CHECK(back["text"].get<std::string>() == "a\"\n\u00e9");
  CHECK(detail::own_json("[1, 2.5]").get<std::vector<double>>() == std::vector<double>{1, 2.5});
  CHECK(Json(2) == Json(2.0));
  CHECK(Json(2) != Json("2"));
  CHECK(Json(size_t(2)) == 2);
  CHECK(Json({{"a", 1}}) != Json({{"b", 1}}));
}
TEST_CASE("json: a null becomes what it is used as; keys are added, found and erased") {
  Json j;
  CHECK(j.is_null());
  j["a"]["b"] = 1;
  j["list"].push_back(2);
  j["list"].push_back({{"c", 3}});
  CHECK(detail::text_of(j) == R"({"a":{"b":1},"list":[2,{"c":3}]})");
  REQUIRE(j.find("a"));
  CHECK(j.find("a")->contains("b"));
  CHECK(j.find("none") == nullptr);
  j.erase("a");
  j.erase("none");
  CHECK(j.size() == 1);
  std::string seen;
  for (const auto& [key, x] : j.items()) seen += key + "=" + detail::text_of(x);
  CHECK(seen == R"(list=[2,{"c":3}])");
  for (const Json& x : j["list"]) seen += x.type_name();
  CHECK_HAS(seen, "numberobject");
}
TEST_CASE("json: what is not there or of another type is an Error that shows the value") {
  const Json j = {{"a", 1}};
  CHECK_SAYS(j.at("b"), R"([json] {"a":1} has no 'b')");
  CHECK_SAYS(j.at(size_t(0)), R"([json] {"a":1} is no array)");
  CHECK_SAYS(Json::array({1}).at(1), "[json] [1] has no element 1");
  CHECK_SAYS(j["a"].get<std::string>(), "[json] 1 is no string");
  CHECK_SAYS(Json("x").get<int64_t>(), "[json] \"x\" is no number");
  CHECK_SAYS(Json("x").get<double>(), "[json] \"x\" is no number");
  CHECK_SAYS(Json(1).get<bool>(), "[json] 1 is no boolean");
  CHECK_SAYS(Json(1).items(), "[json] 1 is no object");
  CHECK_SAYS(Json(1)["x"] = 2, "[json] 1 is no object");
  CHECK_SAYS(Json(1).push_back(2), "[json] 1 is no array");
}
TEST_CASE("json: a number that the integer asked for cannot hold is an Error") {
  CHECK_SAYS(Json(1e30).get<int64_t>(),
             "[json] 1e+30 is asked for as an integer of -9223372036854775808 to 9223372036854775807.");
  for (const char* text : {"18446744073709551615", "9223372036854775808", "-1e19", "9.3e18"})
    CHECK_SAYS(detail::own_json(text).get<int64_t>(), "is asked for as an integer");
  CHECK_SAYS(Json(std::nan("")).get<int64_t>(), "is asked for as an integer");
  CHECK_SAYS(Json(-1).get<uint64_t>(), "[json] -1 is asked for as an integer of 0 to 18446744073709551615");
  CHECK_SAYS(Json(300).get<uint8_t>(), "of 0 to 255");
  CHECK(Json(1e19).get<uint64_t>() == 10'000'000'000'000'000'000u);
  CHECK(Json(-2.5).get<int64_t>() == -2);
  CHECK(Json(-0x1p62).get<int64_t>() == INT64_MIN / 2);
  CHECK(Json(255u).get<uint8_t>() == 255);
}
TEST_CASE("json: text that is none") {
  CHECK(detail::json_or_null("{").is_null());
  CHECK(detail::json_or_null("[1]").size() == 1);
  CHECK(detail::own_json("[[[[[[[[1]]]]]]]]").size() == 1);  // own text: deeper, last of equal keys
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 400'000; ++i) deep += open;
    CHECK_SAYS(detail::own_json(deep), "[json] the text is nested too deeply");
    CHECK(detail::json_or_null(deep).is_null());
  }
  CHECK(detail::text_of(detail::own_json(R"({"a": 1, "b": {"a": 2}, "a": [3]})")) == R"({"a":[3],"b":{"a":2}})");
  CHECK_SAYS(detail::own_json("{"), "[json] the text is not JSON: ");
  CHECK_SAYS(detail::parse_json("{", "op", "f.json"), "[op] f.json is not JSON: ");
  CHECK_SAYS(detail::parse_json(R"({"a": 1, "a": 2})", "op", "f.json"), "[op] f.json: 'a' comes twice");
  CHECK_SAYS(detail::parse_json(R"({"x": {"a": 1, "a": 2}})", "op", "f.json"), "'a' comes twice");
  CHECK_SAYS(detail::parse_json("[[[[[[[[1]]]]]]]]", "op", "f.json"), "[op] f.json is nested too deeply");
  CHECK(detail::parse_json("[[[[[[[[1]]]]]]]]", "op", "f.json", 9).size() == 1);
  CHECK_SAYS(detail::parse_json("[[1]]", "op", "f.json", 2), "[op] f.json is nested too deeply");
  CHECK_SAYS(detail::parse_json(std::string(1'000'000, '['), "op", "f.json", 20), "nested too deeply");
  CHECK(detail::parse_json(R"({"x": {"a": 1}, "y": {"a": 2}})", "op", "f.json")["y"]["a"] == 2);
}
