/// @file
/// Scopes: interned names of the parts of a model ('gpt.h.3.mlp'), for messages and profiles. They live until the
/// process ends, and are compared and kept as pointers.
#pragma once
#include <tapegrad/core/span.h>
#include <tapegrad/core/util/scoped_value.h>

#include <string>
#include <string_view>

namespace tg {

/// A path of names. Each path has one object that is never freed, so a Node keeps the bare pointer.
struct Scope {
  const Scope* parent;
  std::string name;
  /// The names from the outermost to this one, separated by dots.
  std::string path() const { return parent && parent->parent ? parent->path() + "." + name : name; }
};
/// The current scope of the calling thread.
const Scope* current_scope();
/// The scope `name` inside `parent`.
const Scope* scope_within(const Scope* parent, std::string_view name);
/// Ops called while it lives belong to the part of a model with this name. A Profiler records it as a range. Each new
/// path takes about 140 bytes until the process ends: name layers, not every step.
class NameScope {
 public:
  [[nodiscard]] explicit NameScope(std::string_view name) : NameScope(scope_within(current_scope(), name)) {}
  /// Enters an existing scope; null is the root.
  [[nodiscard]] explicit NameScope(const Scope* scope);

 private:
  ScopedValue<const Scope*> scope_;
  detail::Span span_;
};
namespace detail {
// A NameScope without a range, for ops that are emitted later on behalf of a scope.
struct EmitInScope : ScopedValue<const Scope*> {
  [[nodiscard]] explicit EmitInScope(const Scope*);
};
}  // namespace detail

/// The unique string with this text, which is never freed. Equal texts have equal pointers.
const std::string* intern(std::string_view);

}  // namespace tg
