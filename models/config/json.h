// JSON in files of models and runs. parse_json is the one door for what somebody wrote: the library's parser keeps the
// last of two equal keys and follows any depth of nesting. Included by .cpp files only, which leave parsing and
// printing, large templates both, to json.cpp. Objects keep the order of their keys; a key is found by looking at all
// of them, so that code which walks over what somebody wrote looks for the keys it knows, and never for each that is
// there.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tg {

using Json = nlohmann::ordered_json;

// `op` opens messages, `source` names the text in them. An Error when it is no JSON, is nested more than six deep, or
// holds a key twice in one object.
Json parse_json(std::string_view text, std::string_view op, const std::string& source);
// Of text that this library wrote.
Json own_json(std::string_view text);
// On one line, or with each field on a line of its own, indented by that many spaces. Bytes that are no UTF-8, as in
// paths, become U+FFFD.
std::string text_of(const Json&, int indent = -1);

}  // namespace tg
