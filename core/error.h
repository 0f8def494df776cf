// The one exception type, the checks that throw it, and interned scopes ('gpt.h.3.mlp'): where an op was emitted.
// Form of a message: [op] what is wrong: the values. The rule. What to do. Then, on a line of its own, the scope.
// No logging here and no error codes anywhere: every failure a caller can cause is an Error.
#pragma once
#include <tapegrad/core/profile_range.h>

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace tg {

class Error : public std::runtime_error {
 public:
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

  Error(Kind kind, const std::string& what, bool scoped = false)
      : std::runtime_error(what), kind_(kind), scoped_(scoped) {}
  Kind kind() const { return kind_; }
  bool scoped() const { return scoped_; }  // what() already says in which scope it happened

 private:
  Kind kind_;
  bool scoped_;
};

namespace detail {
[[noreturn]] void fail(Error::Kind, std::string what);
[[noreturn]] void fail_assert(const char* condition, const char* file, int line);
}  // namespace detail

// Checks of what a caller passed: always on. The arguments are evaluated on failure only.
#define TG_CHECK(cond, kind, ...)                                              \
  do {                                                                         \
    if (!(cond)) [[unlikely]]                                                  \
      ::tg::detail::fail(::tg::Error::Kind::kind, ::fmt::format(__VA_ARGS__)); \
  } while (0)
// Invariants of our own: on unless NDEBUG.
#ifdef NDEBUG
#define TG_ASSERT(cond) ((void)0)
#else
#define TG_ASSERT(cond) ((cond) ? (void)0 : ::tg::detail::fail_assert(#cond, __FILE__, __LINE__))
#endif

// A scope lives for ever, one object per distinct path: a Node keeps the bare pointer.
struct Scope {
  const Scope* parent;
  std::string name;
  std::string path() const { return parent && parent->parent ? parent->path() + "." + name : name; }
};
const Scope* current_scope();
const Scope* scope_within(const Scope* parent, std::string_view name);
// Names the part of a model that the ops emitted during its life belong to. It is a range of that name for a Profiler.
class InScope {
 public:
  explicit InScope(std::string_view name) : InScope(scope_within(current_scope(), name)) {}
  explicit InScope(const Scope* scope);  // null is the root
  ~InScope();
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  const Scope* previous_;
  detail::Span span_;
};
namespace detail {
// The same without a range: for ops that are emitted later on behalf of those of the scope.
class OnBehalfOf {
 public:
  explicit OnBehalfOf(const Scope*);
  ~OnBehalfOf();
  OnBehalfOf(const OnBehalfOf&) = delete;
  OnBehalfOf& operator=(const OnBehalfOf&) = delete;

 private:
  const Scope* previous_;
};
}  // namespace detail

// Base of fmt formatters for our types: "{}" only, the text as it is.
struct PlainFormatter {
  template <class C> constexpr auto parse(C& c) { return c.begin(); }
  template <class C> static auto write(std::string_view text, C& c) {
    auto out = c.out();
    for (char ch : text) *out++ = ch;
    return out;
  }
};

// One string per distinct text, for ever: labels are compared and kept as pointers.
const std::string* intern(std::string_view);

}  // namespace tg
