#include <fmt/core.h>
#include <tapegrad/core/error.h>

#include <cstdint>

namespace tg {
void detail::fail(Error::Kind kind, std::string what) {
  constexpr size_t kHead = 900, kTail = 400;  // file keys and lines may be long
  if (what.size() > kHead + kTail + 100) {
    size_t from = kHead, to = what.size() - kTail;
    while ((uint8_t(what[from]) & 0xC0) == 0x80 && from > 0) --from;  // UTF-8 character start
    while ((uint8_t(what[to]) & 0xC0) == 0x80) ++to;
    what.replace(from, to - from, fmt::format(" [... {} bytes ...] ", to - from));
  }
  throw Error(kind, what);
}
void detail::add_place(const Error& e, const std::source_location& where, const char* what) {
  if (where.line() == 0) throw e;
  const std::string_view message = e.what();
  for (const char* place : {"\n    called at ", "\n    compiled at "})
    if (message.find(place) != std::string_view::npos) throw e;  // this place is nearer to the mistake
  throw Error(e.kind(), fmt::format("{}\n    {} at {}:{}", message, what, where.file_name(), where.line()), e.scoped());
}
}  // namespace tg
