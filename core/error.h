/// @file
/// The one exception type, and the checks that throw it. A message has the form "[op] what is wrong: the values. The
/// rule. What to do.", with the scope on a line of its own. There is no logging here, and there are no error codes
/// anywhere: every failure that a caller can cause is an Error.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace tg {

/// What the library throws. what() is the message; kind() is for programs that react.
class Error : public std::runtime_error {
 public:
  /// What is wrong. `state` is a call at the wrong time; `internal` is a mistake of the library itself.
  enum class Kind {
    shape,
    dtype,
    device,
    value,
    state,
    missing_kernel,
    missing_gradient,
    non_finite,
    memory,
    cuda,
    io,
    comm,
    internal
  };

  /// An error with this text. `scoped`: the text already names the scope.
  Error(Kind kind, const std::string& what, bool scoped = false)
      : std::runtime_error(what), kind_(kind), scoped_(scoped) {}
  Kind kind() const { return kind_; }
  bool scoped() const { return scoped_; }  ///< whether what() already names the scope in which it happened

 private:
  Kind kind_;
  bool scoped_;
};

namespace detail {
[[noreturn]] void fail(Error::Kind, std::string what);
}  // namespace detail

/// Throws an Error of `kind` with a formatted message unless `cond` holds. For mistakes of a caller: always on. The
/// arguments are evaluated on failure only.
#define TG_CHECK(cond, kind, ...)                                              \
  do {                                                                         \
    if (!(cond)) [[unlikely]]                                                  \
      ::tg::detail::fail(::tg::Error::Kind::kind, ::fmt::format(__VA_ARGS__)); \
  } while (0)

/// The base of fmt formatters for our types: it takes "{}" only and writes the text as it is.
struct PlainFormatter {
  template <class C> constexpr auto parse(C& c) { return c.begin(); }
  template <class C> static auto write(std::string_view text, C& c) {
    auto out = c.out();
    for (char ch : text) *out++ = ch;
    return out;
  }
};

}  // namespace tg
