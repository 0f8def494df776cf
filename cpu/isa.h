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

namespace tg::cpu::TG_ISA_NS {

// The dtypes that ops compute in (check::computes): f.template operator()<T>() with double, float or bf16.
template <class F> void visit_float(DType d, F&& f) {
  if (d == DType::f64)
    f.template operator()<double>();
  else if (d == DType::f32)
    f.template operator()<float>();
  else
    f.template operator()<bf16>();
}
// i32 or i64: the dtypes of indices.
template <class F> void visit_index(DType d, F&& f) {
  if (d == DType::i32)
    f.template operator()<int32_t>();
  else
    f.template operator()<int64_t>();
}
// All that arithmetic is defined for.
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_float(d, f); }

}  // namespace tg::cpu::TG_ISA_NS
