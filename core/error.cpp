#include <tapegrad/core/error.h>

namespace tg {
void detail::fail(Error::Kind kind, std::string what) { throw Error(kind, what); }
}  // namespace tg
