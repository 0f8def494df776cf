#include <tapegrad/core/error.h>

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

namespace detail {
void fail(Error::Kind kind, std::string what) { throw Error(kind, what); }
void fail_assert(const char* condition, const char* file, int line) {
  throw Error(Error::Kind::internal, fmt::format("[internal] {} does not hold at {}:{}. This is a defect of tapegrad; "
                                                 "please report it with the program that shows it.",
                                                 condition, file, line));
}
}  // namespace detail

const Scope* current_scope() { return t_scope; }
const Scope* scope_within(const Scope* parent, std::string_view name) {
  // Leaked: nodes that outlive main() still point at their scopes.
  static auto& all = *new std::map<std::pair<const Scope*, std::string>, std::unique_ptr<Scope>>;
  std::lock_guard lock(g_mutex);
  auto& slot = all[{parent, std::string(name)}];
  if (!slot) slot.reset(new Scope{parent, std::string(name)});
  return slot.get();
}
InScope::InScope(const Scope* scope) : previous_(t_scope) {
  t_scope = scope ? scope : &g_root;
  if (detail::profiling() && t_scope != previous_ && t_scope->parent) [[unlikely]]
    span_.begin_layer(t_scope);
}
InScope::~InScope() { t_scope = previous_; }
detail::OnBehalfOf::OnBehalfOf(const Scope* s) : previous_(std::exchange(t_scope, s)) {}
detail::OnBehalfOf::~OnBehalfOf() { t_scope = previous_; }

const std::string* intern(std::string_view text) {
  static auto& all = *new std::set<std::string, std::less<>>;
  std::lock_guard lock(g_mutex);
  auto it = all.find(text);
  return &*(it != all.end() ? it : all.emplace(text).first);
}
}  // namespace tg
