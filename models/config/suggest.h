/// @file
/// Names: glob_matches() has patterns of them, nearest() suggests a known one for a mistyped one, EnumNames names
/// enums.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tg {

namespace detail {
/// Whether the whole name matches the pattern. An asterisk matches zero or more characters, dots too.
bool glob_matches(std::string_view pattern, std::string_view name);
/// The name with * for each number: "h.*.mlp.fc".
std::string block_pattern(std::string_view name);
/// The entry of `known` that other programs call `word` ("lora_r"), else the first at the smallest edit distance (a
/// swap is one). Empty if more than a third of the characters differ.
std::string nearest(std::string_view word, std::span<const std::string_view> known);
/// " Did you mean 'x'?" with the nearest entry, or "".
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);
/// The index of `word` in `known`, or an Error that lists them.
size_t known_place(std::string_view what, std::string_view word, std::span<const std::string_view> known);
/// Words as "a, b, c".
std::string listed(std::span<const std::string_view> words);

/// "1 token", "2 tokens".
std::string counted(int64_t n, std::string_view noun);
}  // namespace detail

/// The names of an enum's values in order, and its name in messages.
template <size_t n> struct EnumNames {
  std::string_view what, names[n];
};
/// Specializations, of type EnumNames, give E name_of() and from_name().
template <class E> inline constexpr int kEnumNames = 0;
/// An enum with such a specialization.
template <class E>
concept NamedEnum = requires { kEnumNames<E>.names; };
/// Name of a value.
template <NamedEnum E> std::string_view name_of(E x) { return kEnumNames<E>.names[size_t(x)]; }
/// Sets the value of this name, or throws an Error with all names.
template <NamedEnum E> void from_name(std::string_view name, E& to) {
  to = E(detail::known_place(kEnumNames<E>.what, name, kEnumNames<E>.names));
}

}  // namespace tg
