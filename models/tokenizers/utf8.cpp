#include <tapegrad/core/check.h>
#include <tapegrad/models/tokenizers/utf8.h>
#include <utf8proc.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace tg::detail {
namespace {

// Accented Latin, Han: NFC neither changes them nor joins them with earlier ones.
bool stays(char32_t c) { return c < 0x300 || (c >= 0x3400 && c < 0xA000); }

constexpr char32_t kNoted = 1;
std::atomic<char32_t> unknown = 0;

std::string composed(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), ssize_t(text.size()),
                                          &result, utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, std::free);
  TG_CHECK(n >= 0, memory, "[tokenizer] NFC of {} bytes failed: {}.", text.size(), utf8proc_errmsg(n));
  return {reinterpret_cast<const char*>(result), size_t(n)};
}

}  // namespace

size_t last_at(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(4, text.size()); ++n)
    if (first_of(text.substr(text.size() - n)).length == n) return text.size() - n;
  return text.size() - 1;
}
void append_utf8(std::string& to, char32_t code) {
  utf8proc_uint8_t bytes[4];
  to.append(reinterpret_cast<const char*>(bytes), size_t(utf8proc_encode_char(utf8proc_int32_t(code), bytes)));
}

size_t unfinished_at_end(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = uint8_t(text[text.size() - n]);
    if ((byte & 0xC0u) == 0x80u) continue;  // continuation byte
    const size_t length = byte >= 0xF5 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return n < length ? n : 0;
  }
  return 0;
}

size_t valid_end(std::string_view text, size_t at, size_t end) {
  while (at < end) {
    uint64_t eight = ~uint64_t(0);
    if (at + 8 <= end) std::memcpy(&eight, text.data() + at, 8);
    const auto ascii = size_t(std::countr_zero(eight & 0x8080808080808080u)) / 8;
    const size_t length = ascii > 0 ? ascii : first_of(text.substr(at)).length;
    if (length == 0) break;
    at += length;
  }
  return at;
}

int64_t invalid_bytes(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; (at = valid_end(text, at, text.size())) < text.size(); ++at) ++count;
  return count;
}
bool nfc_lacks(char32_t c) {
  const bool never = (c & 0xFFFE) == 0xFFFE || (c >= 0xFDD0 && c <= 0xFDEF);  // noncharacters
  return !never && utf8proc_category(utf8proc_int32_t(c)) == UTF8PROC_CATEGORY_CN;
}
std::string note_of_nfc() {
  const char32_t c = unknown.exchange(kNoted);
  if (c == 0) unknown = 0;
  if (c == 0 || c == kNoted) return "";
  return fmt::format(
      "the text has U+{:04X}, which Unicode {} of utf8proc lacks: ids may differ from those of newer tools",
      uint32_t(c), utf8proc_unicode_version());
}

std::string nfc(std::string_view text) {
  std::string to;
  size_t done = 0,
         from = 0;  // `to` has text before `done`
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0x80) {
      from = at++;
      continue;
    }
    Utf8 c = first_of(text.substr(at));
    const auto changing = [&] { return c.length > 0 && !stays(c.code); };
    if (!changing()) {
      at += std::max<size_t>(c.length, 1);
      from = c.length > 0 ? at - c.length : at;  // no part crosses an invalid byte
      continue;
    }
    to += text.substr(done, from - done);
    do {
      if (unknown == 0 && nfc_lacks(c.code)) unknown = c.code;
      at += c.length;
      c = at < text.size() ? first_of(text.substr(at)) : Utf8();
    } while (changing());
    to += composed(text.substr(from, at - from));
    done = from = at;
  }
  return to += text.substr(done);
}

}  // namespace tg::detail
