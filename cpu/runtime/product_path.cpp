#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <algorithm>
#include <cstdlib>

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tg::cpu {
size_t chosen_path(std::span<const ProductPath> paths, const char* variable, std::string_view op,
                   std::string_view dtype) {
  const char* wish = std::getenv(variable);  // tests set it
  if (!wish)
    return size_t(
        std::find_if(paths.rbegin(), paths.rend(), [](const ProductPath& p) { return p.has && p.fast; }).base() -
        paths.begin() - 1);
  for (size_t i = 0; i < paths.size(); ++i)
    if (paths[i].name == wish && paths[i].has) return i;
  std::string all, here;
  for (size_t i = 0; i < paths.size(); ++i) {
    all += fmt::format("{}{}", i == 0 ? "" : i + 1 < paths.size() ? ", " : " and ", paths[i].name);
    if (paths[i].has) here += fmt::format("{}{}", here.empty() ? "" : ", ", paths[i].name);
  }
  tg::detail::fail(
      Error::Kind::value,
      fmt::format("[{}] {} is '{}'. It must name a path for {} GEMM: {}; this machine has {}. Change or unset it.", op,
                  variable, wish, dtype, all, here));
}

bool has_instructions(int level, unsigned subleaf_of_7, CpuidRegister in, int bit) {
#ifdef __x86_64__
  unsigned r[4] = {};
  return tg::detail::kernel_level(Backend::cpu) >= level &&
         __get_cpuid_count(7, subleaf_of_7, &r[0], &r[1], &r[2], &r[3]) && (r[size_t(in)] >> bit & 1) != 0;
#else
  (void)level, (void)subleaf_of_7, (void)in, (void)bit;
  return false;
#endif
}
bool is_amd() {
#ifdef __x86_64__
  unsigned r[4] = {};
  return __get_cpuid(0, &r[0], &r[1], &r[2], &r[3]) && r[1] == signature_AMD_ebx;
#else
  return false;
#endif
}
bool has_tiles() {
#if defined(__x86_64__) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kTileState = 3u << 17;                    // bits of XCR0
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // constants of arch_prctl
  if (!has_instructions(4, 0, CpuidRegister::d, 24)) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
}  // namespace tg::cpu
