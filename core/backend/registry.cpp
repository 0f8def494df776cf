#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>

#include <algorithm>
#include <cstdlib>

namespace tg {
namespace {
struct Registry {  // leaked: static objects may register first or read last
  std::vector<OpInfo (*)()> ops;
  std::vector<KernelInfo> kernels;
};
Registry& registry() {
  static auto& r = *new Registry;
  return r;
}
std::string_view from_source_root(const char* file) {
  std::string_view f = file;
  for (std::string_view folder : {"/cpu/", "/cuda/", "/tests/", "/bench/"})
    if (size_t at = f.rfind(folder); at != f.npos) return f.substr(at + 1);
  return f;
}
// TG_ISA: 1, 3 or 4; 0 if invalid, 4 if unset.
int wished_level() {
  const char* wish = std::getenv("TG_ISA");
  if (!wish) return 4;
  const std::string_view text = wish;
  return text == "1" ? 1 : text == "3" ? 3 : text == "4" ? 4 : 0;
}
int detect_isa_level() {
  int level = 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) level = 3;
  if (level == 3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    level = 4;
#endif
  // An Error before main() would not be caught: kernel_level() throws it for an invalid TG_ISA.
  return wished_level() == 0 ? level : std::min(level, wished_level());
}
}  // namespace

int detail::isa_level() {
  static const int level = detect_isa_level();
  return level;
}
bool detail::register_kernel(const char* op, KernelSlot& slot, Backend b, AnyKernel fn, const KernelOrigin& origin) {
  if (origin.level > detail::isa_level()) return false;
  registry().kernels.push_back({op, b, from_source_root(origin.file), origin.line, origin.level});
  if (origin.level >= slot.level) slot = {fn, origin.level, origin.strided};
  return true;
}
bool detail::register_op(OpInfo (*info)()) {
  registry().ops.push_back(info);
  return true;
}
std::vector<OpInfo> detail::all_ops() {
  std::vector<OpInfo> r;
  for (auto info : registry().ops) r.push_back(info());
  std::sort(r.begin(), r.end(), [](auto& a, auto& b) { return a.name < b.name; });
  return r;
}
std::vector<KernelInfo> detail::all_kernels() {
  auto r = registry().kernels;
  std::stable_sort(r.begin(), r.end(), [](auto& a, auto& b) {
    return std::tie(a.op, a.backend, a.level) < std::tie(b.op, b.backend, b.level);
  });
  return r;
}
int detail::kernel_level(Backend b) {
  TG_CHECK(
      wished_level() != 0, value,
      "[kernels] TG_ISA is '{}'. It must be 1, 3 or 4, the level of x86-64 that kernels may use. Change or unset it.",
      std::getenv("TG_ISA"));
  int level = 0;
  for (const KernelInfo& k : registry().kernels)
    if (k.backend == b) level = std::max(level, k.level);
  return level;
}
}  // namespace tg
