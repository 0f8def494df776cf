#include <tapegrad/cpu/gemm/bf16_path.h>
#include <tapegrad/cpu/gemm/product_bursts.h>

namespace tg::cpu {
namespace {
#ifdef __x86_64__
double f32_rate() { return TG_RATE(300, 16, "vfmadd231ps %%zmm0, %%zmm1, %%zmm"); }  // asked beside AVX-512's alone
double avx512_rate() { return TG_RATE(150, 32, "vdpbf16ps %%zmm0, %%zmm1, %%zmm"); }
double amx_rate() { return TG_TILE_RATE(16 * 16 * 32, "tdpbf16ps"); }
#else
constexpr double (*f32_rate)() = nullptr, (*avx512_rate)() = nullptr, (*amx_rate)() = nullptr;
#endif

std::span<const ProductPath> paths() {
  static const ProductPath all[] = {
      {"f32", true, f32_rate},
      {"avx512", has_instructions(4, 1, CpuidRegister::a, 5), avx512_rate},
      {"amx", has_instructions(4, 0, CpuidRegister::d, 22) && has_tiles(), amx_rate},
  };
  return all;
}
size_t quickest() {
  static const size_t best = quickest_path(paths());
  return best;
}
size_t quickest_of_parts() {
  constexpr double kProducts = 6, kWorthwhile = 1.5;  // splitting operands takes time, too
  static const bool amx = paths()[2].has && amx_rate() > kProducts * kWorthwhile * f32_rate();
  return amx ? 2 : 0;
}
}  // namespace

std::string_view name_of(Bf16Path path) { return paths()[size_t(path)].name; }
bool has(Bf16Path path) { return paths()[size_t(path)].has; }
Bf16Path bf16_parts_path() { return Bf16Path(chosen_path(paths(), quickest_of_parts, "TG_BF16", "matmul", "bf16")); }
Bf16Path bf16_path() { return Bf16Path(chosen_path(paths(), quickest, "TG_BF16", "matmul", "bf16")); }
}  // namespace tg::cpu
