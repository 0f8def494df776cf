/// @file
/// Scopes: interned names of the parts of a model ('gpt.h.3.mlp'), for messages and profiles. They live until the
/// process ends, and are compared and kept as pointers.
#pragma once
#include <tapegrad/core/span.h>
#include <tapegrad/core/util/scoped_value.h>

#include <string>
#include <string_view>

namespace tg {

/// A path of names: one object each, never freed.
struct Scope {
  const Scope* parent;
  std::string name;
  /// Names separated by dots, outermost first.
  std::string path() const { return parent && parent->parent ? parent->path() + "." + name : name; }
};
namespace detail {
const Scope* current_scope();
const Scope* scope_within(const Scope* parent, std::string_view name);
// A NameScope without a range, for ops emitted later.
struct EmitInScope : ScopedValue<const Scope*> {
  [[nodiscard]] explicit EmitInScope(const Scope*);
};

/// Unique, never freed string of this text.
const std::string* intern(std::string_view);
}  // namespace detail
/// Ops in this scope belong to the part of a model with this name. A Profiler records it as a range. Each path takes
/// about 140 bytes until the process ends: name layers, not steps.
class NameScope {
 public:
  [[nodiscard]] explicit NameScope(std::string_view name)
      : NameScope(detail::scope_within(detail::current_scope(), name)) {}
  /// Enters an existing scope; null: root.
  [[nodiscard]] explicit NameScope(const Scope* scope);

 private:
  ScopedValue<const Scope*> scope_;
  detail::Span span_;
};

}  // namespace tg
