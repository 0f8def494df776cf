#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/core/scope.h>

namespace tg::detail {
constinit thread_local const Scope* t_range = nullptr;

namespace {
const Scope g_ranges{nullptr, ""};  // root of all paths
}  // namespace
const Scope* path_within(const Scope* path, std::string_view name) {
  return detail::scope_within(path ? path : &g_ranges, name);
}
const Scope* path_within(const Scope* path, Phase p) {
  static constexpr std::string_view kNames[] = {"forward", "loss", "backward", "optimizer"};
  static const Scope* const outermost[] = {path_within(nullptr, kNames[0]), path_within(nullptr, kNames[1]),
                                           path_within(nullptr, kNames[2]), path_within(nullptr, kNames[3])};
  return path ? path_within(path, kNames[size_t(p)]) : outermost[size_t(p)];
}
const Scope* joined_path(const Scope* outer, const Scope* inner) {
  if (!outer || !inner) return outer ? outer : inner;
  if (!inner->parent) return outer;
  return path_within(joined_path(outer, inner->parent), inner->name);
}

}  // namespace tg::detail
