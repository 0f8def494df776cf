#include <fmt/core.h>
#include <tapegrad/core/error.h>

namespace tg {
void detail::fail(Error::Kind kind, std::string what) { throw Error(kind, what); }
void detail::add_place(const Error& e, const std::source_location& where, const char* what) {
  if (where.line() == 0) throw e;
  const std::string_view message = e.what();
  for (const char* place : {"\n    called at ", "\n    compiled at "})
    if (message.find(place) != std::string_view::npos) throw e;  // this place is nearer to the mistake
  throw Error(e.kind(), fmt::format("{}\n    {} at {}:{}", message, what, where.file_name(), where.line()), e.scoped());
}
}  // namespace tg
