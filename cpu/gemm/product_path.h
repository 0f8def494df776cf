// The choice among ways to multiply matrices of a dtype (cpu/gemm/bf16_path.h, cpu/gemm/int8_path.h): those that
// processor and system have, and of them the quickest by a measurement, as the same instructions run at half the speed
// of others on one processor and at twice on another. Compiled once for all levels.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::cpu {

struct ProductPath {
  std::string_view name;  // in the environment variable
  bool has;
  double (*rate)();  // multiply-adds per second; null: slower than all that are measured
};
// The index of the path that the environment variable names, or of the quickest, as `quickest` says. A value error in
// the name of `op` if the variable holds no name, or that of a path which is not here.
size_t chosen_path(std::span<const ProductPath>, size_t (*quickest)(), const char* variable, std::string_view op,
                   std::string_view dtype);
// Measures those that are here, unless there is one alone; some 10 us each.
size_t quickest_path(std::span<const ProductPath>);

// What CPUID says, on kernels of this level and above. False on other processors.
enum class CpuidRegister { a, b, c, d };
bool has_instructions(int level, unsigned subleaf_of_7, CpuidRegister, int bit);
// AMX's tiles, beside the instructions on them: asks Linux for their registers.
bool has_tiles();

// Multiply-adds per second of a burst of independent instructions of some 1 us.
double rate_of(double multiply_adds, void (*burst)());

}  // namespace tg::cpu
