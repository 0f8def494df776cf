// Checks of Errors. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/error.h>

#include <string>

// `use` throws an Error of this kind whose message contains `part`: CHECK_SAYS(f({1, 2}), "rank is 0"),
// CHECK_SAYS_OF(value, f({1, 2}), "rank is 0").
#define CHECK_SAYS(use, part) CHECK_HAS(::tg::error_of([&] { (void)(use); }), part)
#define CHECK_SAYS_OF(kind_, use, part) CHECK_HAS(::tg::error_of(::tg::Error::Kind::kind_, [&] { (void)(use); }), part)
#define CHECK_HAS(message, part)                           \
  do {                                                     \
    const std::string m_ = (message);                      \
    CHECK_MESSAGE(m_.find(part) != std::string::npos, m_); \
  } while (0)

// CAPTURE of several expressions: "m, n := 3, 5".
#define CAPTURE_ALL(...) INFO(#__VA_ARGS__ " := ", tg::shown(__VA_ARGS__))

namespace tg {

// The message of the Error that f throws, which must be of `kind`.
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
