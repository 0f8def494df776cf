// GEMM paths, chosen by processor, system and environment alone: all processes on a machine compute the same bits.
// Compiled once for all levels.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::cpu {

struct ProductPath {
  std::string_view name;  // value of the environment variable
  bool has;
  bool fast = true;  // false: used only if the variable names it
};
// The path that the variable names, else the last present and fast one. A value error of `op` for an unknown or absent
// name.
size_t chosen_path(std::span<const ProductPath>, const char* variable, std::string_view op, std::string_view dtype);

// CPUID leaf 7; false unless kernels of this level and above exist.
enum class CpuidRegister { a, b, c, d };
bool has_instructions(int level, unsigned subleaf_of_7, CpuidRegister, int bit);
bool is_amd();
bool has_tiles();

}  // namespace tg::cpu
