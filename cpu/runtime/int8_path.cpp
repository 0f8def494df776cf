#include <tapegrad/core/backend/registry.h>
#include <tapegrad/cpu/runtime/int8_path.h>
#include <tapegrad/cpu/runtime/product_path.h>

namespace tg::cpu {
namespace {
std::span<const ProductPath> int8_paths() {
  static const ProductPath all[] = {
      {"plain", true},
      {"avx2", tg::detail::kernel_level(Backend::cpu) >= 3},
      {"avx_vnni", has_instructions(3, 1, CpuidRegister::a, 4)},
      {"avx512_vnni", has_instructions(4, 0, CpuidRegister::c, 11)},
      {"amx", has_instructions(4, 0, CpuidRegister::d, 25) && has_tiles()},
  };
  return all;
}
}  // namespace

std::string_view name_of(Int8Path path) { return int8_paths()[size_t(path)].name; }
bool has(Int8Path path) { return int8_paths()[size_t(path)].has; }
Int8Path int8_path() { return Int8Path(chosen_path(int8_paths(), "TG_INT8", "int8_linear", "int8")); }
}  // namespace tg::cpu
