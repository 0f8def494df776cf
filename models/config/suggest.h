/// @file
/// nearest(): the known word that a mistyped one was probably meant to be. For messages about unknown keys, names and
/// options; not for lookups.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace tg {

/// The entry of `known` with the smallest edit distance to `word` (insertions, deletions, substitutions and swaps of
/// neighbours), the first of equals. Empty if even that entry differs in more than a third of its characters.
std::string nearest(std::string_view word, std::span<const std::string_view> known);
/// The text " Did you mean 'x'?" with the nearest entry, or "".
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);
/// The index of `word` in `known`; an Error "[what] 'word' is not known ..." lists them.
size_t known_place(std::string_view what, std::string_view word, std::span<const std::string_view> known);
/// The words as "a, b, c".
std::string listed(std::span<const std::string_view> words);

}  // namespace tg
