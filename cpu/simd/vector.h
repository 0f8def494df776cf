// Level's width; SSE2 on the baseline.
#pragma once
#include <tapegrad/cpu/simd/isa.h>

#include <cstring>

namespace tg::cpu::TG_ISA_NS {

#if TG_ISA_LEVEL == 4
inline constexpr int64_t kVectorBytes = 64;
#elif TG_ISA_LEVEL == 3
inline constexpr int64_t kVectorBytes = 32;
#else
inline constexpr int64_t kVectorBytes = 16;
#endif
template <class C> inline constexpr int64_t kVector = kVectorBytes / int64_t(sizeof(C));  // lanes

template <class C> struct VectorOf {
  typedef C type __attribute__((vector_size(kVectorBytes)));
};
template <class C> using Vector = typename VectorOf<C>::type;

template <class C> inline Vector<C> load_vector(const C* p) {
  Vector<C> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class C> inline void store_vector(C* p, Vector<C> v) { std::memcpy(p, &v, sizeof v); }
template <class C> constexpr int64_t whole_vectors(int64_t n) { return (n + kVector<C> - 1) / kVector<C> * kVector<C>; }

}  // namespace tg::cpu::TG_ISA_NS
