/// @file
/// Configurations as JSON text, as in model files. A configuration is a plain struct whose visit_fields() lists its
/// fields:
///
///     struct MoeConfig { int64_t width = 64; tg::Activation activation = tg::Activation::silu; };
///     template <class F>
///     void visit_fields(MoeConfig& c, F&& f) { f("width", c.width), f("activation", c.activation); }
///
/// to_json() and save_model() write it, config_from_json() and load_model() read it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace tg {

/// An enum field; its namespace has name_of() and from_name(name, field).
struct NamedField {
  std::function<std::string()> get;
  std::function<void(std::string_view)> set;
};
/// Name of a field and the address of its value.
struct ConfigField {
  std::string name;
  std::variant<int64_t*, double*, bool*, std::string*, NamedField> value;
  bool optional = false;  ///< written unless 0, may be missing
};
/// Fields that visit_fields() lists.
struct ConfigFields {
  std::vector<ConfigField> list;
  /// Adds an int64_t, double, bool, std::string or enum.
  template <class T> void operator()(const char* name, T& x, const char* /*help*/ = "") {
    if constexpr (std::is_enum_v<T>)
      list.push_back({name, NamedField{[&x] { return std::string(name_of(x)); },
                                       [&x](std::string_view word) { from_name(word, x); }}});
    else
      list.push_back({name, &x});
  }
  /// Adds an optional field.
  void optional(const char* name, int64_t& x) { list.push_back({name, &x, true}); }
};
/// A struct with visit_fields().
template <class C>
concept HasFields = requires(C& c, ConfigFields& fields) { visit_fields(c, fields); };

/// The source of a configuration.
struct ConfigText {
  std::string name = "the text";  ///< name of the text in messages
  /// A missing field is an Error (as in files), not its default.
  bool every_field = false;
  std::string op = "config";  ///< starts messages
};

/// A JSON object, indented by two spaces.
std::string to_json(const ConfigFields&);
/// A JSON object with every field, indented by two spaces.
template <HasFields C> std::string to_json(const C& config) {
  C copy = config;
  ConfigFields fields;
  visit_fields(copy, fields);
  return to_json(fields);
}
namespace detail {
/// Sets the fields. An Error for invalid JSON, an unknown key (suggests the nearest), a duplicate key or a wrong type.
void read_fields(std::string_view text, const ConfigText&, const ConfigFields&);
/// Reads a configuration. Errors of read_fields() and of the configuration's validate().
template <HasFields C> C config_from_json(std::string_view text, const ConfigText& source = {}) {
  C config;
  ConfigFields fields;
  visit_fields(config, fields);
  read_fields(text, source, fields);
  if constexpr (requires { config.validate(); }) config.validate();
  return config;
}
}  // namespace detail

}  // namespace tg
