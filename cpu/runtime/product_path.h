// The choice among ways to multiply matrices of a dtype (cpu/runtime/bf16_path.h, cpu/runtime/int8_path.h). It depends
// on processor, system and environment alone, so that all processes on a machine compute the same bits. Compiled once
// for all levels.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::cpu {

struct ProductPath {
  std::string_view name;  // in the environment variable
  bool has;
  bool fast = true;  // false: only taken when it is named
};
// The index of the path that the environment variable names, or of the last that is here and fast. A value error in the
// name of `op` if the variable holds no name, or that of a path which is not here.
size_t chosen_path(std::span<const ProductPath>, const char* variable, std::string_view op, std::string_view dtype);

// What CPUID says, on kernels of this level and above. False on other processors.
enum class CpuidRegister { a, b, c, d };
bool has_instructions(int level, unsigned subleaf_of_7, CpuidRegister, int bit);
// Whether CPUID names AMD as the maker.
bool is_amd();
// AMX's tiles, beside the instructions on them: asks Linux for their registers.
bool has_tiles();

}  // namespace tg::cpu
