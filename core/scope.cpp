#include <tapegrad/core/scope.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace tg {
namespace {
std::mutex g_mutex;
const Scope g_root{nullptr, ""};
constinit thread_local const Scope* t_scope = &g_root;
}  // namespace

const Scope* detail::current_scope() { return t_scope; }
const Scope* detail::scope_within(const Scope* parent, std::string_view name) {
  // Leaked: nodes outlive main().
  static auto& all = *new std::map<std::pair<const Scope*, std::string>, std::unique_ptr<Scope>>;
  std::lock_guard lock(g_mutex);
  auto& slot = all[{parent, std::string(name)}];
  if (!slot) slot.reset(new Scope{parent, std::string(name)});
  return slot.get();
}
NameScope::NameScope(const Scope* scope) : scope_(t_scope, scope ? scope : &g_root) {
  if (detail::profiling() && t_scope != scope_.former() && t_scope->parent) [[unlikely]]
    span_.begin_layer(t_scope);
}
detail::EmitInScope::EmitInScope(const Scope* s) : ScopedValue(t_scope, s) {}

const std::string* detail::intern(std::string_view text) {
  static auto& all = *new std::set<std::string, std::less<>>;
  std::lock_guard lock(g_mutex);
  auto it = all.find(text);
  return &*(it != all.end() ? it : all.emplace(text).first);
}
}  // namespace tg
