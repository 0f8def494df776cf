// Philox (core/rng.h) on lanes of 64 bits: a word of a block per lane, in the lower half; the upper has remains.
#pragma once
#include <tapegrad/cpu/simd/vector.h>

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace tg::cpu::TG_ISA_NS::philox {
using Lane = Vector<uint64_t>;
inline constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57, kWord = 0xffffffff;

// The products of lower halves.
inline Lane product(const Lane& a, uint64_t factor) {
  const Lane b = Lane{} + factor;
#if defined(__AVX512F__)
  return Lane(_mm512_mul_epu32(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  return Lane(_mm256_mul_epu32(__m256i(a), __m256i(b)));
#elif defined(__SSE2__)
  return Lane(_mm_mul_epu32(__m128i(a), __m128i(b)));
#else
  return (a & kWord) * b;
#endif
}
struct Keys {  // a pair per round
  Lane of[10][2];
  explicit Keys(uint64_t seed) {
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (auto& k : of) k[0] = Lane{} + k0, k[1] = Lane{} + k1, k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
};
// All rounds but the first, which callers shorten. Two sets hide the latency of multiplications.
template <int kSets>
inline __attribute__((always_inline)) void finish(Lane (&x)[kSets], Lane (&y)[kSets], Lane (&z)[kSets],
                                                  Lane (&w)[kSets], const Keys& keys) {
#pragma GCC unroll 9
  for (int round = 1; round < 10; ++round)
#pragma GCC unroll 2
    for (int s = 0; s < kSets; ++s) {
      const Lane a = product(x[s], kM0), b = product(z[s], kM1);
      x[s] = (b >> 32) ^ y[s] ^ keys.of[round][0], y[s] = b;
      z[s] = (a >> 32) ^ w[s] ^ keys.of[round][1], w[s] = a;
    }
}
}  // namespace tg::cpu::TG_ISA_NS::philox
