/// @file
/// Scopes: the names of the parts of a model ('gpt.h.3.mlp'), for messages and profiles. Names are interned: they live
/// as long as the process, and are compared and kept as pointers.
#pragma once
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/core/scoped_value.h>

#include <string>
#include <string_view>

namespace tg {

/// A scope lives for ever, one object per distinct path: a Node keeps the bare pointer.
struct Scope {
  const Scope* parent;
  std::string name;
  std::string path() const { return parent && parent->parent ? parent->path() + "." + name : name; }
};
const Scope* current_scope();
const Scope* scope_within(const Scope* parent, std::string_view name);
/// Names the part of a model that the ops emitted during its life belong to. It is a range of that name for a Profiler.
class NameScope {
 public:
  explicit NameScope(std::string_view name) : NameScope(scope_within(current_scope(), name)) {}
  explicit NameScope(const Scope* scope);  ///< null is the root

 private:
  ScopedValue<const Scope*> scope_;
  detail::Span span_;
};
namespace detail {
// The same without a range: for ops that are emitted later on behalf of those of the scope.
struct OnBehalfOf : ScopedValue<const Scope*> {
  explicit OnBehalfOf(const Scope*);
};
}  // namespace detail

/// One string per distinct text, for ever: labels are compared and kept as pointers.
const std::string* intern(std::string_view);

}  // namespace tg
