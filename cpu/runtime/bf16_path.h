// Paths of bf16 GEMM, which differ in last bits. Compiled once for all levels.
#pragma once
#include <string_view>

namespace tg::cpu {

enum class Bf16Path {
  f32,     // GEMM in f32: everywhere
  avx512,  // vdpbf16ps of AVX512_BF16
  amx,     // tdpbf16ps on AMX tiles
};
inline constexpr Bf16Path kBf16Paths[] = {Bf16Path::f32, Bf16Path::avx512, Bf16Path::amx};
std::string_view name_of(Bf16Path);  // values of TG_BF16: "f32", "avx512", "amx"
// Support by processor, system and build. The first call asks Linux for AMX tile registers.
bool has(Bf16Path);
// TG_BF16 (read at each call), else AMX, else AVX512_BF16 of AMD, else f32. A value error for an unknown or absent
// path.
Bf16Path bf16_path();
// f32 GEMM by six bf16 products (gemm_parts.cpp): TG_BF16, else AMX, else f32.
Bf16Path bf16_parts_path();

}  // namespace tg::cpu
