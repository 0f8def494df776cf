// Checks of Errors. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/core/error.h>

#include <string>
#include <vector>

// CHECK_SAYS(f({1, 2}), "rank is 0", "in f"): an Error with these texts; CHECK_SAYS_OF(value, ...): of this kind.
#define CHECK_SAYS(use, ...) CHECK_HAS(::tg::error_of([&] { (void)(use); }), __VA_ARGS__)
#define CHECK_SAYS_OF(kind_, use, ...) \
  CHECK_HAS(::tg::error_of(::tg::Error::Kind::kind_, [&] { (void)(use); }), __VA_ARGS__)
#define CHECK_HAS(message, ...)                                                        \
  do {                                                                                 \
    const std::string m_ = (message);                                                  \
    for (const std::string& part_ : ::tg::texts(__VA_ARGS__))                          \
      CHECK_MESSAGE(m_.find(part_) != std::string::npos, "no '", part_, "' in: ", m_); \
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
template <class... T> std::vector<std::string> texts(const T&... x) { return {std::string(x)...}; }
template <class... T> std::string shown(const T&... x) {
  std::string s;
  ((s += (s.empty() ? "" : ", ") + std::string(doctest::toString(x).c_str())), ...);
  return s;
}

}  // namespace tg
