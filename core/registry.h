/// @file
/// What was linked into this program: ops, and for each backend the kernel that was chosen for it. Filled by static
/// objects before main() (OpOf and TG_KERNEL in op.h), read by bench/list_ops and by tests.
#pragma once
#include <tapegrad/core/device.h>

#include <string_view>
#include <vector>

/// CPU kernel files are compiled once per instruction-set level (cmake/levels.cmake): 1 plain x86-64 or any other
/// processor, 3 x86-64-v3 (AVX2, FMA), 4 x86-64-v4 (AVX-512). The highest level that the machine has wins.
#ifndef TG_ISA_LEVEL
#define TG_ISA_LEVEL 1
#endif

namespace tg {

using AnyKernel = void (*)();
struct KernelSlot {
  AnyKernel fn = nullptr;
  int level = 0;
};
struct KernelOrigin {
  const char* file;
  int line, level;
};
struct KernelInfo {
  std::string_view op;
  Backend backend;
  std::string_view file;  ///< from the source root on: "cpu/matmul.cpp"
  int line, level;
};
struct OpInfo {
  std::string_view name;
  bool has_vjp, composes, is_view;
};

bool register_kernel(const char* op, KernelSlot&, Backend, AnyKernel, const KernelOrigin&);  ///< origin must live on
bool register_op(OpInfo (*info)());
std::vector<OpInfo> all_ops();  ///< by name
std::vector<KernelInfo>
all_kernels();  ///< by op, backend, level; those of levels that this machine lacks are not there
/// The highest level this machine can run, or less when the environment variable TG_ISA asks for it (1, 3 or 4).
int isa_level();
/// Of the kernels that run: the highest that this machine and this build have.
int kernel_level(Backend);

}  // namespace tg
