/// @file
/// Configurations as JSON text, as in the files of a model. A configuration is a plain struct; a function
/// visit_fields() beside it lists its fields:
///
///     struct MoeConfig { int64_t width = 64; tg::Activation activation = tg::Activation::silu; };
///     template <class F> void visit_fields(MoeConfig& c, F&& f) { f("width", c.width), f("activation", c.activation);
///     }
///
/// to_json() and config_from_json() then write and read it, and save_model() and load_model() too.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tg {

/// A field of an enum type, which has name_of() and from_name(name, field) in its namespace.
struct NamedField {
  std::function<std::string()> get;
  std::function<void(std::string_view)> set;
};
/// A field of a configuration: its name, and where its value is.
struct ConfigField {
  std::string name;
  std::variant<int64_t*, double*, bool*, std::string*, NamedField> value;
};
/// A list of fields, which visit_fields() fills.
struct ConfigFields {
  std::vector<ConfigField> list;
  /// Adds a field: an int64_t, double, bool, std::string or enum.
  template <class T> void operator()(const char* name, T& x, const char* /*help*/ = "") {
    if constexpr (std::is_enum_v<T>)
      list.push_back({name, NamedField{[&x] { return std::string(name_of(x)); },
                                       [&x](std::string_view word) { from_name(word, x); }}});
    else
      list.push_back({name, &x});
  }
};
/// A struct with visit_fields().
template <class C>
concept HasFields = requires(C& c, ConfigFields& fields) { visit_fields(c, fields); };

/// Where a configuration comes from.
struct ConfigText {
  std::string name = "the text";  ///< the name of the text in messages
  bool every_field = false;       ///< whether a missing field is an Error, as in files; otherwise it keeps its default
  std::string op = "config";      ///< opens messages
};

/// A JSON object with these fields, indented by two spaces.
std::string to_json(const ConfigFields&);
/// Sets the fields from a JSON object. An Error for text that is not JSON, an unknown key (with the nearest known one),
/// a key that comes twice, and a value of the wrong type.
void read_fields(std::string_view text, const ConfigText&, const ConfigFields&);

/// A JSON object with every field, indented by two spaces.
template <HasFields C> std::string to_json(const C& config) {
  C copy = config;
  ConfigFields fields;
  visit_fields(copy, fields);
  return to_json(fields);
}
/// The configuration of a JSON text. Errors are those of read_fields() and of the configuration's validate(), if it has
/// one.
template <HasFields C> C config_from_json(std::string_view text, const ConfigText& source = {}) {
  C config;
  ConfigFields fields;
  visit_fields(config, fields);
  read_fields(text, source, fields);
  if constexpr (requires { config.validate(); }) config.validate();
  return config;
}

}  // namespace tg
