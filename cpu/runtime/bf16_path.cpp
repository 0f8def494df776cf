#include <tapegrad/cpu/runtime/bf16_path.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <cstdlib>

namespace tg::cpu {
namespace {
// Relative to FMA, vdpbf16ps does twice the multiply-adds on Zen 5, more on Zen 4, half on Sapphire Rapids.
std::span<const ProductPath> paths() {
  static const ProductPath all[] = {
      {"f32", true},
      {"avx512", has_instructions(4, 1, CpuidRegister::a, 5), is_amd()},
      {"amx", has_instructions(4, 0, CpuidRegister::d, 22) && has_tiles()},
  };
  return all;
}
}  // namespace

std::string_view name_of(Bf16Path path) { return paths()[size_t(path)].name; }
bool has(Bf16Path path) { return paths()[size_t(path)].has; }
Bf16Path bf16_path() { return Bf16Path(chosen_path(paths(), "TG_BF16", "matmul", "bf16")); }
Bf16Path bf16_parts_path() {
  const Bf16Path path = bf16_path();
  return path == Bf16Path::amx || std::getenv("TG_BF16") ? path : Bf16Path::f32;
}
}  // namespace tg::cpu
