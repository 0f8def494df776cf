// How products of int8 are computed on this machine (cpu/gemm/gemm_int8.h, cpu/runtime/product_path.h). All ways give
// the same numbers. Compiled once for all levels. Used by the kernels of products and by describe().
#pragma once
#include <string_view>

namespace tg::cpu {

enum class Int8Path {
  plain,        // C++ alone: everywhere
  avx2,         // vpmaddwd on elements widened to int16, on AVX2
  avx_vnni,     // vpdpbusd of AVX-VNNI, on AVX2
  avx512_vnni,  // vpdpbusd of AVX512_VNNI
  amx,          // tdpbssd on AMX tiles
};
inline constexpr Int8Path kInt8Paths[] = {Int8Path::plain, Int8Path::avx2, Int8Path::avx_vnni, Int8Path::avx512_vnni,
                                          Int8Path::amx};
std::string_view name_of(Int8Path);  // as in TG_INT8: "plain", "avx2", "avx_vnni", "avx512_vnni", "amx"
// Whether processor, system and this build have it. The first question asks Linux for the tiles' registers.
bool has(Int8Path);
// The last of them that this machine has, or what the environment variable TG_INT8 names, read at each call. A value
// error if it is no name, or if this machine lacks what it names.
Int8Path int8_path();

}  // namespace tg::cpu
