/// @file
/// The registry of all ops of this program, and of their kernels by backend. Static objects fill it before main() (OpOf
/// and TG_KERNEL in op.h).
#pragma once
#include <tapegrad/core/device.h>

#include <string_view>
#include <vector>

#ifndef TG_ISA_LEVEL
/// This file's instruction-set level: CPU kernel files are compiled once per level (cmake/levels.cmake). 1: plain
/// x86-64, or any other processor; 3: x86-64-v3 (AVX2, FMA); 4: x86-64-v4 (AVX-512).
#define TG_ISA_LEVEL 1
#endif

namespace tg {

/// A kernel of any op; cast back before a call.
using AnyKernel = void (*)();
/// Kernel of one op on one backend; null without one.
struct KernelSlot {
  AnyKernel fn = nullptr;
  int level = 0;
  bool strided = false;
};
/// Where a kernel is registered; whether it takes any strides.
struct KernelOrigin {
  const char* file;
  int line, level;
  bool strided = false;
};
/// A registered kernel, for listings.
struct KernelInfo {
  std::string_view op;
  Backend backend;
  std::string_view file;  ///< path in the source tree: "cpu/kernels/matmul.cpp"
  int line, level;
};
/// An op of this program: whether it overrides vjp(), overrides compose(), is a view.
struct OpInfo {
  std::string_view name;
  bool has_vjp, composes, is_view;
};

namespace detail {
/// Registers a kernel unless a higher level exists or the machine lacks its level. Keeps `origin`.
bool register_kernel(const char* op, KernelSlot&, Backend, AnyKernel, const KernelOrigin&);
/// Adds an op to all_ops(), before main().
bool register_op(OpInfo (*info)());
/// All ops of this program, sorted by name.
std::vector<OpInfo> all_ops();
/// All kernels that this machine can run, sorted by op, backend and level.
std::vector<KernelInfo> all_kernels();
/// Instruction-set level of CPU kernels, 1, 3 or 4: this machine's highest, or TG_ISA if lower.
int isa_level();
/// Highest level of a backend's kernels, at most isa_level(). An Error if TG_ISA is not 1, 3 or 4.
int kernel_level(Backend);
}  // namespace detail

}  // namespace tg
