// Compiled once per instruction-set level, into a namespace per level: the linker never mixes levels. Files of users
// have other flags.
#pragma once
#include <tapegrad/core/op.h>

#ifdef TG_LIBRARY
#define TG_ISA_NS TG_CAT(isa, TG_ISA_LEVEL)
#else
#define TG_ISA_NS TG_CAT(own, TG_ISA_LEVEL)
#endif
namespace tg::cpu {
namespace TG_ISA_NS {}
using namespace TG_ISA_NS;  // other files write tg::cpu::for_each
}  // namespace tg::cpu

// Loops read index i, then write it. Without this, compilers test whether operands overlap and do not vectorise.
// Sanitizers prevent vectorisation: the pragma would warn.
#if defined(__clang__) && defined(TG_SANITIZED)
#define TG_SAME_INDEX
#elif defined(__clang__)
#define TG_SAME_INDEX _Pragma("clang loop vectorize(assume_safety)")
#else
#define TG_SAME_INDEX _Pragma("GCC ivdep")
#endif
