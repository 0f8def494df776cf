// Chooses a GEMM path per dtype (bf16_path.h, int8_path.h) by processor, system and environment alone: all processes on
// a machine compute the same bits. Compiled once for all levels.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::cpu {

struct ProductPath {
  std::string_view name;  // value of the environment variable
  bool has;
  bool fast = true;  // false: must be named
};
// Index of the path that the variable names, else of the last present and fast one. A value error of `op` if the
// variable names no path or an absent one.
size_t chosen_path(std::span<const ProductPath>, const char* variable, std::string_view op, std::string_view dtype);

// A bit of CPUID leaf 7, for kernels of this level and above; else false.
enum class CpuidRegister { a, b, c, d };
bool has_instructions(int level, unsigned subleaf_of_7, CpuidRegister, int bit);
bool is_amd();
// AMX's tile registers, without its instructions: asks Linux for permission.
bool has_tiles();

}  // namespace tg::cpu
