// Paths of bf16 and int8 GEMM, chosen by processor, system and environment alone: all processes on a machine compute
// the same bits. Compiled once for all levels.
#pragma once
#include <string_view>

namespace tg::cpu {

enum class Bf16Path {  // differ in last bits
  f32,                 // GEMM in f32: everywhere
  avx512,              // vdpbf16ps of AVX512_BF16
  amx,                 // tdpbf16ps on AMX tiles
};
inline constexpr Bf16Path kBf16Paths[] = {Bf16Path::f32, Bf16Path::avx512, Bf16Path::amx};
enum class Int8Path {  // equal to the bit
  plain,               // C++ alone: everywhere
  avx2,                // vpmaddwd on int16-widened values, AVX2
  avx_vnni,            // vpdpbusd of AVX-VNNI, AVX2
  avx512_vnni,         // vpdpbusd of AVX512_VNNI
  amx,                 // tdpbssd on AMX tiles
};
inline constexpr Int8Path kInt8Paths[] = {Int8Path::plain, Int8Path::avx2, Int8Path::avx_vnni, Int8Path::avx512_vnni,
                                          Int8Path::amx};
// Values of TG_BF16 and TG_INT8: "f32", "avx512_vnni" and so on.
std::string_view name_of(Bf16Path);
std::string_view name_of(Int8Path);
// Support by processor, system and build. The first call asks Linux for AMX tile registers.
bool has(Bf16Path);
bool has(Int8Path);
// Set before the first call by a program that emulates tiles (tests/support/amx.h): AMX is then present where AVX-512
// is.
inline bool emulates_amx = false;
// TG_BF16 (read at each call; a value error for an unknown or absent path), else AMX, else AVX512_BF16 of AMD, else
// f32.
Bf16Path bf16_path();
// f32 GEMM by six bf16 products (gemm_parts.cpp): TG_BF16, else AMX, else f32.
Bf16Path bf16_parts_path();
// TG_INT8 likewise, else the last path that is present.
Int8Path int8_path();

}  // namespace tg::cpu
