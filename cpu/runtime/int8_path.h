// Paths of int8 GEMM, equal to the bit. Compiled once for all levels.
#pragma once
#include <string_view>

namespace tg::cpu {

enum class Int8Path {
  plain,        // C++ alone: everywhere
  avx2,         // vpmaddwd on int16-widened values, AVX2
  avx_vnni,     // vpdpbusd of AVX-VNNI, AVX2
  avx512_vnni,  // vpdpbusd of AVX512_VNNI
  amx,          // tdpbssd on AMX tiles
};
inline constexpr Int8Path kInt8Paths[] = {Int8Path::plain, Int8Path::avx2, Int8Path::avx_vnni, Int8Path::avx512_vnni,
                                          Int8Path::amx};
std::string_view name_of(Int8Path);  // values of TG_INT8: "plain", "avx2", ..., "amx"
// Support by processor, system and build. The first call asks Linux for AMX tile registers.
bool has(Int8Path);
// TG_INT8 (read at each call), else the last path that is present. A value error for an unknown or absent path.
Int8Path int8_path();

}  // namespace tg::cpu
