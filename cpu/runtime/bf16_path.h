// How products of bf16 are computed on this machine (cpu/gemm/gemm_bf16.h, cpu/runtime/product_path.h). The ways differ
// in last bits. Compiled once for all levels. Used by the kernels of products and by describe().
#pragma once
#include <string_view>

namespace tg::cpu {

enum class Bf16Path {
  f32,     // widened block by block and multiplied in f32: everywhere
  avx512,  // vdpbf16ps of AVX512_BF16
  amx,     // tdpbf16ps on AMX tiles
};
inline constexpr Bf16Path kBf16Paths[] = {Bf16Path::f32, Bf16Path::avx512, Bf16Path::amx};
std::string_view name_of(Bf16Path);  // as in TG_BF16: "f32", "avx512", "amx"
// Whether processor, system and this build have it. The first question asks Linux for the tiles' registers.
bool has(Bf16Path);
// AMX, else AVX512_BF16 of AMD, else f32; or what the environment variable TG_BF16 names, read at each call. A value
// error if it is no name, or if this machine lacks what it names.
Bf16Path bf16_path();
// The way of f32 products by six products of bf16 parts (cpu/gemm/gemm_parts.cpp): AMX, else f32; or what
// TG_BF16 names.
Bf16Path bf16_parts_path();

}  // namespace tg::cpu
