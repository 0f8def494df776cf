#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tg::cpu {
namespace {
enum class CpuidRegister { a, b, c, d };
#ifdef __x86_64__
// CPUID leaf 7; false unless kernels of this level and above exist.
bool has_instructions(int level, unsigned subleaf, CpuidRegister in, int bit) {
  unsigned r[4] = {};
  return tg::detail::kernel_level(Backend::cpu) >= level && __get_cpuid_count(7, subleaf, &r[0], &r[1], &r[2], &r[3]) &&
         (r[size_t(in)] >> bit & 1) != 0;
}
bool is_amd() {
  unsigned r[4] = {};
  return __get_cpuid(0, &r[0], &r[1], &r[2], &r[3]) && r[1] == signature_AMD_ebx;
}
#else
bool has_instructions(int, unsigned, CpuidRegister, int) { return false; }
bool is_amd() { return false; }
#endif
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

struct ProductPath {
  std::string_view name;  // value of the environment variable
  bool has;
  bool fast = true;  // false: used only if the variable names it
};
using ProductPaths = std::span<const ProductPath>;
ProductPath amx_path(int bit_of_dtype) {
  const bool here = has_instructions(4, 0, CpuidRegister::d, bit_of_dtype) && has_tiles();
  return {"amx", here || (emulates_amx && tg::detail::kernel_level(Backend::cpu) >= 4), here};
}
// Relative to FMA, vdpbf16ps does twice the multiply-adds on Zen 5, more on Zen 4, half on Sapphire Rapids.
ProductPaths bf16_paths() {
  static const ProductPath all[] = {
      {"f32", true},
      {"avx512", has_instructions(4, 1, CpuidRegister::a, 5), is_amd()},
      amx_path(22),
  };
  return all;
}
ProductPaths int8_paths() {
  static const ProductPath all[] = {
      {"plain", true},
      {"avx2", tg::detail::kernel_level(Backend::cpu) >= 3},
      {"avx_vnni", has_instructions(3, 1, CpuidRegister::a, 4)},
      {"avx512_vnni", has_instructions(4, 0, CpuidRegister::c, 11)},
      amx_path(25),
  };
  return all;
}
// The path that the variable names, else the last present and fast one.
size_t chosen_path(ProductPaths paths, const char* variable, std::string_view op, std::string_view dtype) {
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
}  // namespace

std::string_view name_of(Bf16Path path) { return bf16_paths()[size_t(path)].name; }
std::string_view name_of(Int8Path path) { return int8_paths()[size_t(path)].name; }
bool has(Bf16Path path) { return bf16_paths()[size_t(path)].has; }
bool has(Int8Path path) { return int8_paths()[size_t(path)].has; }
Bf16Path bf16_path() { return Bf16Path(chosen_path(bf16_paths(), "TG_BF16", "matmul", "bf16")); }
Bf16Path bf16_parts_path() {
  const Bf16Path path = bf16_path();
  return path == Bf16Path::amx || std::getenv("TG_BF16") ? path : Bf16Path::f32;
}
Int8Path int8_path() { return Int8Path(chosen_path(int8_paths(), "TG_INT8", "int8_linear", "int8")); }
}  // namespace tg::cpu
