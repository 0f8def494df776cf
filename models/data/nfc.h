// Composed characters. Internal to models/data.
#pragma once
#include <string>
#include <string_view>

namespace tg::detail {

// The text in Unicode's normalization form C (UAX 15), as far as the library that tests/data/make_unicode.py asks knows
// it: that has no combining classes of marks after Unicode 9. Bytes that are no UTF-8 stay as they are.
std::string nfc(std::string_view text);

}  // namespace tg::detail
