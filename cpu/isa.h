// Kernel files of this folder are compiled once per instruction-set level. Everything that such a file defines lies in
// tg::cpu::TG_ISA_NS, a namespace of the level, so that the linker never takes one level's code for another's.
#pragma once
#include <tapegrad/core/op.h>

#if TG_ISA_LEVEL == 4
#define TG_ISA_NS isa4
#elif TG_ISA_LEVEL == 3
#define TG_ISA_NS isa3
#else
#define TG_ISA_NS isa1
#endif

// Before a loop that reads index i in full before it writes index i, and nothing else: operands may be the very same
// memory, which a compiler would otherwise test for and then not vectorise.
#if defined(__clang__) && defined(TG_SANITIZED)  // checks keep it from vectorising, of which it would warn
#define TG_SAME_INDEX
#elif defined(__clang__)
#define TG_SAME_INDEX _Pragma("clang loop vectorize(assume_safety)")
#else
#define TG_SAME_INDEX _Pragma("GCC ivdep")
#endif
