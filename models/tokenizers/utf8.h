// UTF-8 characters.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tg::detail {

struct Utf8 {
  char32_t code = 0;
  size_t length = 0;  // 0: invalid bytes
};
// First character of a nonempty text; no overlong forms or surrogates, at most U+10FFFF (The Unicode Standard,
// table 3-7).
inline Utf8 first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return uint32_t(uint8_t(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < length) return {};
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, length};
}

// Last character's or invalid byte's offset in a nonempty text.
size_t last_at(std::string_view text);
void append_utf8(std::string& to, char32_t code);

// Bytes (0 to 3) of an incomplete last character.
size_t unfinished_at_end(std::string_view text);

// The end of valid characters from `at` on, or of the first that reaches `end`.
size_t valid_end(std::string_view text, size_t at, size_t end);
// Bytes outside of characters.
int64_t invalid_bytes(std::string_view text);

// Normalization form C (UAX 15), by utf8proc. Invalid UTF-8 stays.
std::string nfc(std::string_view text);
// utf8proc has no class for it (noncharacters never have).
bool nfc_lacks(char32_t);
// A note, returned once, on nfc()'s first code point that utf8proc lacks; else empty.
std::string note_of_nfc();

}  // namespace tg::detail
