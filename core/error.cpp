#include <tapegrad/core/error.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>

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
InScope::InScope(const Scope* scope) : previous_(t_scope) { t_scope = scope ? scope : &g_root; }
InScope::InScope(std::string_view name) : previous_(t_scope) {
  // Leaked: nodes that outlive main() still point at their scopes.
  static auto& all = *new std::map<std::pair<const Scope*, std::string>, std::unique_ptr<Scope>>;
  std::lock_guard lock(g_mutex);
  auto& slot = all[{t_scope, std::string(name)}];
  if (!slot) slot.reset(new Scope{t_scope, std::string(name)});
  t_scope = slot.get();
}
InScope::~InScope() { t_scope = previous_; }

const std::string* intern(std::string_view text) {
  static auto& all = *new std::set<std::string, std::less<>>;
  std::lock_guard lock(g_mutex);
  auto it = all.find(text);
  return &*(it != all.end() ? it : all.emplace(text).first);
}
}  // namespace tg
