// Unicode normalization. Internal.
#pragma once
#include <string>
#include <string_view>

namespace tg::detail {

// Normalization form C (UAX 15), by utf8proc. Invalid UTF-8 stays.
std::string nfc(std::string_view text);

}  // namespace tg::detail
