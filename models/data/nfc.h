// Composed characters. Internal to models/data.
#pragma once
#include <string>
#include <string_view>

namespace tg::detail {

// The text in Unicode's normalization form C (UAX 15), by utf8proc. Bytes that are no UTF-8 stay as they are.
std::string nfc(std::string_view text);

}  // namespace tg::detail
