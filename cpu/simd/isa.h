// Kernel files of this folder are compiled once per instruction-set level. Everything that such a file defines lies in
// tg::cpu::TG_ISA_NS, a namespace of the level, so that the linker never takes one level's code for another's. Files
// outside of the library, compiled with flags of their own, have namespaces of their own for the same reason.
#pragma once
#include <tapegrad/core/op.h>

#ifdef TG_LIBRARY
#define TG_ISA_NS TG_CAT(isa, TG_ISA_LEVEL)
#else
#define TG_ISA_NS TG_CAT(own, TG_ISA_LEVEL)
#endif
namespace tg::cpu {
namespace TG_ISA_NS {}
using namespace TG_ISA_NS;  // so that other files may write tg::cpu::for_each
}  // namespace tg::cpu

// Before a loop that reads index i in full before it writes index i, and nothing else: operands may be the very same
// memory, which a compiler would otherwise test for and then not vectorise.
#if defined(__clang__) && defined(TG_SANITIZED)  // checks keep it from vectorising, of which it would warn
#define TG_SAME_INDEX
#elif defined(__clang__)
#define TG_SAME_INDEX _Pragma("clang loop vectorize(assume_safety)")
#else
#define TG_SAME_INDEX _Pragma("GCC ivdep")
#endif
