#include <tapegrad/core/error.h>

namespace tg::detail {
void fail(Error::Kind kind, std::string what) { throw Error(kind, what); }
void fail_assert(const char* condition, const char* file, int line) {
  throw Error(Error::Kind::internal, fmt::format("[internal] {} does not hold at {}:{}. This is a defect of tapegrad; "
                                                 "please report it with the program that shows it.",
                                                 condition, file, line));
}
}  // namespace tg::detail
