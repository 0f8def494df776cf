// Level's width; SSE2 on the baseline.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/simd/isa.h>
#if TG_ISA_LEVEL >= 3
#include <immintrin.h>
#endif

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
// a b + c, rounded once; twice on the baseline. Kernels are compiled without contraction.
#if TG_ISA_LEVEL == 4 && defined(__AVX512F__)
inline Vector<float> fma(Vector<float> a, Vector<float> b, Vector<float> c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector<double> fma(Vector<double> a, Vector<double> b, Vector<double> c) { return _mm512_fmadd_pd(a, b, c); }
#elif TG_ISA_LEVEL == 3 && defined(__FMA__)
inline Vector<float> fma(Vector<float> a, Vector<float> b, Vector<float> c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector<double> fma(Vector<double> a, Vector<double> b, Vector<double> c) { return _mm256_fmadd_pd(a, b, c); }
#elif TG_ISA_LEVEL < 3
inline Vector<float> fma(Vector<float> a, Vector<float> b, Vector<float> c) { return a * b + c; }
inline Vector<double> fma(Vector<double> a, Vector<double> b, Vector<double> c) { return a * b + c; }
#endif
inline float fma(float a, float b, float c) { return math::detail::mad<false>(a, b, c); }
inline double fma(double a, double b, double c) { return math::detail::mad(a, b, c); }
template <class C> constexpr int64_t whole_vectors(int64_t n) { return (n + kVector<C> - 1) / kVector<C> * kVector<C>; }

}  // namespace tg::cpu::TG_ISA_NS
