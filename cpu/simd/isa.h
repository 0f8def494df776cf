// Kernel files are compiled once per instruction-set level. Their definitions are in tg::cpu::TG_ISA_NS, a namespace
// per level: the linker never mixes levels. User files have separate flags, so separate namespaces.
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

// For a loop whose only memory order is: read index i, then write index i. Without this the compiler tests whether
// operands overlap and does not vectorise. Sanitizers prevent vectorisation, so there the pragma would warn.
#if defined(__clang__) && defined(TG_SANITIZED)
#define TG_SAME_INDEX
#elif defined(__clang__)
#define TG_SAME_INDEX _Pragma("clang loop vectorize(assume_safety)")
#else
#define TG_SAME_INDEX _Pragma("GCC ivdep")
#endif
