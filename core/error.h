/// @file
/// The only exception type; TG_CHECK (check.h) throws it. A message has the form "[op] problem: values. Rule. Way
/// out.", with the scope on a separate line. Every failure that a caller can cause is an Error: there are no error
/// codes and no logs.
#pragma once
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ < 16
#error "tapegrad needs clang 16 or g++ 12, or newer: this clang has no std::source_location"
#endif
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tg {

/// tapegrad's exception. what() is the message; programs react to kind().
class Error : public std::runtime_error {
 public:
  /// Category. `state`: a call at the wrong time; `internal`: a bug of tapegrad.
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

  /// `scoped`: the text already names the scope.
  Error(Kind kind, const std::string& what, bool scoped = false)
      : std::runtime_error(what), kind_(kind), scoped_(scoped) {}
  Kind kind() const { return kind_; }
  bool scoped() const { return scoped_; }

 private:
  Kind kind_;
  bool scoped_;
};

namespace detail {
[[noreturn]] void fail(Error::Kind, std::string what);
// The line where this thread last read a gradient that backward() did not reach.
extern constinit thread_local std::source_location t_unreached;
// Adds "called at train.cpp:31" to f()'s Errors, once.
[[noreturn]] void add_place(const Error&, const std::source_location&, const char* what);
template <class F> auto called_at(const std::source_location& where, F&& f, const char* what = "called") {
  try {
    return f();
  } catch (const Error& e) {
    add_place(e, where, what);
  }
}
}  // namespace detail

}  // namespace tg
