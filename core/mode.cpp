#include <tapegrad/core/mode.h>

namespace tg {
namespace {
constinit thread_local bool t_lazy = false, t_grad = true;
constinit thread_local MatmulPrecision t_products = MatmulPrecision::highest;
}  // namespace
constinit thread_local detail::Recomputes detail::t_recomputes = detail::Recomputes::nothing;

NoGradScope::NoGradScope() : ScopedValue(t_grad, false) {}
EnableGradScope::EnableGradScope() : ScopedValue(t_grad, true) {}
LazyScope::LazyScope() : ScopedValue(t_lazy, true) {}
RecomputeScope::RecomputeScope() : ScopedValue(detail::t_recomputes, detail::Recomputes::later) {}
MatmulPrecisionScope::MatmulPrecisionScope(MatmulPrecision p) : ScopedValue(t_products, p) {}

bool grad_enabled() { return t_grad; }
bool lazy_enabled() { return t_lazy; }
bool recompute_enabled() { return detail::t_recomputes == detail::Recomputes::later; }
MatmulPrecision matmul_precision() { return t_products; }
std::string_view name_of(MatmulPrecision p) {
  constexpr std::string_view names[] = {"highest", "high", "medium"};
  return names[size_t(p)];
}
}  // namespace tg
