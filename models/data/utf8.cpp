#include <tapegrad/models/data/utf8.h>

#include <algorithm>

namespace tg::detail {

void append_utf8(std::string& to, char32_t code) {
  const auto put = [&](uint32_t byte) { to += char(uint8_t(byte)); };
  const uint32_t c = code;
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) {
    put(0xE0 | c >> 12);
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F));
  }
  put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

size_t unfinished_at_end(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = uint8_t(text[text.size() - n]);
    if ((byte & 0xC0u) == 0x80u) continue;  // inside a character
    const size_t length = byte >= 0xF5 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return n < length ? n : 0;
  }
  return 0;
}

}  // namespace tg::detail
