#include <tapegrad/core/registry.h>
#include <tapegrad/cpu/gemm/int8_path.h>
#include <tapegrad/cpu/gemm/product_bursts.h>

namespace tg::cpu {
namespace {
#ifdef __x86_64__
double avx2_rate() {
  return rate_of(100.0 * 12 * 16, [] {  // a product and its sum
    for (int i = 0; i < 100; ++i)
      asm volatile(TG_TWELVE("vpmaddwd %%ymm0, %%ymm1, %%ymm14\n\tvpaddd %%ymm14, %%ymm0, %%ymm")::
                       : TG_CHANGED, "xmm14");
    asm volatile("vzeroupper");
  });
}
double avx_vnni_rate() { return TG_RATE(150, 32, "%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm"); }
double avx512_vnni_rate() { return TG_RATE(150, 64, "vpdpbusd %%zmm0, %%zmm1, %%zmm"); }
double amx_int8_rate() { return TG_TILE_RATE(16 * 16 * 64, "tdpbssd"); }
#else
constexpr double (*avx2_rate)() = nullptr, (*avx_vnni_rate)() = nullptr, (*avx512_vnni_rate)() = nullptr,
                 (*amx_int8_rate)() = nullptr;
#endif

std::span<const ProductPath> int8_paths() {
  static const ProductPath all[] = {
      {"plain", true, nullptr},
      {"avx2", kernel_level(Backend::cpu) >= 3, avx2_rate},
      {"avx_vnni", has_instructions(3, 1, CpuidRegister::a, 4), avx_vnni_rate},
      {"avx512_vnni", has_instructions(4, 0, CpuidRegister::c, 11), avx512_vnni_rate},
      {"amx", has_instructions(4, 0, CpuidRegister::d, 25) && has_tiles(), amx_int8_rate},
  };
  return all;
}
size_t quickest_int8() {
  static const size_t best = quickest_path(int8_paths());
  return best;
}
}  // namespace

std::string_view name_of(Int8Path path) { return int8_paths()[size_t(path)].name; }
bool has(Int8Path path) { return int8_paths()[size_t(path)].has; }
Int8Path int8_path() { return Int8Path(chosen_path(int8_paths(), quickest_int8, "TG_INT8", "int8_linear", "int8")); }
}  // namespace tg::cpu
