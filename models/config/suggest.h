/// @file
/// nearest(): suggests a known word for a mistyped one, in messages.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace tg {

/// The first entry of `known` at the smallest edit distance from `word` (insertions, deletions, substitutions, swaps of
/// adjacent characters). Empty if more than a third of its characters differ.
std::string nearest(std::string_view word, std::span<const std::string_view> known);
/// " Did you mean 'x'?" with the nearest entry, or "".
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);
/// The index of `word` in `known`. The Error "[what] 'word' is not known ..." lists them.
size_t known_place(std::string_view what, std::string_view word, std::span<const std::string_view> known);
/// The words as "a, b, c".
std::string listed(std::span<const std::string_view> words);

}  // namespace tg
