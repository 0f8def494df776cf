// Checks of Errors, and several captured values in one line. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/error.h>

#include <string>

// The expression throws an Error whose message has `part`: CHECK_ERROR("rank is 0", f({1, 2})). CHECK_ERROR_OF checks
// the kind too: CHECK_ERROR_OF(value, "rank is 0", f({1, 2})). A failure shows the message.
#define CHECK_ERROR(part, ...) CHECK_HAS(error_of([&] { (void)(__VA_ARGS__); }), part)
#define CHECK_ERROR_OF(kind_, part, ...) CHECK_HAS(error_of(Error::Kind::kind_, [&] { (void)(__VA_ARGS__); }), part)
#define CHECK_HAS(message, part)                           \
  do {                                                     \
    const std::string m_ = (message);                      \
    CHECK_MESSAGE(m_.find(part) != std::string::npos, m_); \
  } while (0)

// CAPTURE of several values.
#define CAPTURE_ALL(...) INFO(#__VA_ARGS__ " := ", tg::shown(__VA_ARGS__))

namespace tg {

// The message of the Error that f throws, which must be of this kind.
template <class F> std::string error_of(Error::Kind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(int(e.kind()) == int(kind));
    return e.what();
  }
  return "no error";
}
template <class... T> std::string shown(const T&... x) {
  std::string s;
  ((s += (s.empty() ? "" : ", ") + std::string(doctest::toString(x).c_str())), ...);
  return s;
}

}  // namespace tg
