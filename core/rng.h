/// @file
/// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
/// 3, SC'11). Word i is a pure function of (seed, offset, i), with the same bits in every kernel, thread and backend,
/// also for normal numbers. It is not for cryptography. There is no global generator.
#pragma once
#include <tapegrad/core/math.h>

#include <cstdint>
#include <span>

namespace tg {

/// A generator's state. `offset` counts blocks of four 32-bit words; a draw of n words advances it by ceil(n / 4):
/// draws start at blocks, and a normal number's two words stay together. Threads' draws differ.
struct Rng {
  uint64_t seed = 0, offset = 0;

  /// Returns the state, for random_word() and normal() with i in [0, n), and advances past them.
  Rng take(uint64_t n);
  /// A generator of another stream of the seed (data order, dropout, initialisation): another key, offset 0, whatever
  /// was drawn.
  Rng split(uint64_t stream) const;

  /// A uniform number in [0, n), for n >= 1. Draws on the host, one block per try.
  uint64_t below(uint64_t n);
  /// A number in [0, 1), a multiple of 2^-24. Draws on the host, one block.
  float uniform();
  /// A number of mean 0 and standard deviation 1. Draws on the host, one block.
  float normal();
  /// A random permutation of the items, all equally likely (Fisher and Yates). Draws on the host.
  void shuffle(std::span<int64_t> items);

  /// out[i] = lo + (hi - lo) * uniform(random_word(at, i)), rounded once, where `at` is the state before the call. A
  /// value that would round to hi becomes the number below it. lo <= hi, both finite; all numbers are equal if they
  /// are.
  void fill_uniform(std::span<float> out, float lo, float hi);
  /// out[i] = mean + stddev * normal(at, i), rounded once, where `at` is the state before the call. Both finite, stddev
  /// >= 0.
  void fill_normal(std::span<float> out, float mean, float stddev);
  /// out[i] = mean + stddev * truncated_normal(random_word(at, i)), rounded once, where `at` is the state before the
  /// call. Both finite, stddev >= 0.
  void fill_truncated_normal(std::span<float> out, float mean, float stddev);

  friend bool operator==(const Rng&, const Rng&) = default;
};

/// A block of four random words.
struct Words {
  uint32_t x, y, z, w;
};

namespace detail {
TG_HD_INLINE Words philox_round(Words c, uint32_t key0, uint32_t key1) {
  const uint64_t a = uint64_t(0xD2511F53u) * c.x, b = uint64_t(0xCD9E8D57u) * c.z;
  return {uint32_t(b >> 32) ^ c.y ^ key0, uint32_t(b), uint32_t(a >> 32) ^ c.w ^ key1, uint32_t(a)};
}
// Selects without an array: indexing would prevent vectorisation over i.
TG_HD_INLINE uint32_t word_of(Words b, uint64_t lane) {
  const uint32_t odd = 0u - uint32_t(lane & 1u), high = 0u - uint32_t(lane >> 1 & 1u);
  const uint32_t low_pair = (b.y & odd) | (b.x & ~odd), high_pair = (b.w & odd) | (b.z & ~odd);
  return (high_pair & high) | (low_pair & ~high);
}
/// Index of element i after a permutation of [0, n) that at.seed chooses: a Feistel network of Philox, repeated until
/// the number is below n (Black and Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002).
uint64_t permuted(Rng at, uint64_t i, uint64_t n);
/// Philox: ten rounds on a 128-bit counter. The key is (low half, high half) of a 64-bit number.
TG_HD_INLINE Words philox4x32(Words counter, uint64_t key) {
  constexpr uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
  const uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  // Unrolled by hand, for vectorised outer loops.
  Words c = detail::philox_round(counter, k0, k1);
  c = detail::philox_round(c, k0 + kStep0, k1 + kStep1);
  c = detail::philox_round(c, k0 + kStep0 * 2, k1 + kStep1 * 2);
  c = detail::philox_round(c, k0 + kStep0 * 3, k1 + kStep1 * 3);
  c = detail::philox_round(c, k0 + kStep0 * 4, k1 + kStep1 * 4);
  c = detail::philox_round(c, k0 + kStep0 * 5, k1 + kStep1 * 5);
  c = detail::philox_round(c, k0 + kStep0 * 6, k1 + kStep1 * 6);
  c = detail::philox_round(c, k0 + kStep0 * 7, k1 + kStep1 * 7);
  c = detail::philox_round(c, k0 + kStep0 * 8, k1 + kStep1 * 8);
  return detail::philox_round(c, k0 + kStep0 * 9, k1 + kStep1 * 9);
}
/// The words 4 block .. 4 block + 3 after at.offset. The upper half of the counter is 0: Rng::split() and masks of
/// attention use its other values.
TG_HD_INLINE Words random_block(Rng at, uint64_t block) {
  const uint64_t n = at.offset + block;
  return philox4x32({uint32_t(n), uint32_t(n >> 32), 0, 0}, at.seed);
}
/// The i-th word after at.offset. Kernels that need all words read random_block(), four at a time.
TG_HD_INLINE uint32_t random_word(Rng at, uint64_t i) { return detail::word_of(random_block(at, i >> 2), i); }
/// A number in [0, 1): the upper 24 bits of a word as an exact fraction.
TG_HD_INLINE float uniform(uint32_t word) { return float(int32_t(word >> 8)) * 0x1p-24f; }
/// Two independent standard normal numbers from two words (Box and Muller). The radius uses all 32 bits of its word, as
/// (word + 1/2) / 2^32 rounded once. It is never 0, and the tails reach 6.7 standard deviations. The bits are the same
/// on every target.
TG_HD_INLINE void normal_pair(uint32_t radius_word, uint32_t angle_word, float& first, float& second) {
  const float low = float(int32_t(radius_word & 255u)) + 0.5f;
  const float u = math::detail::fma(low, 0x1p-32f, float(int32_t(radius_word >> 8)) * 0x1p-24f);
#ifdef __CUDA_ARCH__
  const float radius = __fsqrt_rn(-2.0f * math::exact::log(u));
#else
  const float radius = __builtin_sqrtf(-2.0f * math::exact::log(u));
#endif
  float s, c;
  math::exact::sincos2pi(uniform(angle_word), s, c);
  // A plain product could be contracted with a caller's addition.
  first = math::detail::fma(radius, c, 0.0f);
  second = math::detail::fma(radius, s, 0.0f);
}
/// A standard normal number in [-3, 3] from a word, truncated, not clamped. It is the inverse distribution function
/// sqrt 2 erfinv(v) at v = erf(3 / sqrt 2) (word + 1/2) / 2^31, with the word's upper bit as the sign, computed as v
/// P(-log(1 - v^2)). 1 - |v| comes from the word, not from v, so the ends keep their digits. Error 4 ulp, variance
/// 0.97334. The bits are the same on every target.
TG_HD_INLINE float truncated_normal(uint32_t word) {
  constexpr float kInside = 0.997300208f, kOutside = 0.00269979611f;  // erf(3 / sqrt 2), and 1 minus it
  const uint32_t magnitude = word & 0x7fffffffu;
  const float u = math::detail::fma(float(int32_t(magnitude)), 0x1p-31f, 0x1p-32f);
  const float from_end = math::detail::fma(float(int32_t(0x7fffffffu - magnitude)), 0x1p-31f, 0x1p-32f);
  const float q = math::detail::fma(from_end, kInside, kOutside);  // 1 - |v|
  const float z = -2.5f - math::exact::log(math::detail::fma(-q, q, q + q));
  const float p =
      math::detail::poly<true>(z, 2.12331343f, 0.34880203f, -0.00590758957f, -0.00177165226f, 0.000308722054f,
                               -7.00113969e-06f, -4.88642081e-06f, 6.52905214e-07f, 3.23164819e-08f, -1.18315784e-08f);
  const float x = math::detail::fma(u * kInside, p, 0.0f);
  return math::detail::float_of(math::detail::bits_of(math::detail::select(x > 3.0f, 3.0f, x)) | (word & 0x80000000u));
}
/// The i-th standard normal number after at.offset, from the words 2 (i / 2) and 2 (i / 2) + 1.
TG_HD_INLINE float normal(Rng at, uint64_t i) {
  const Words b = random_block(at, i >> 2);
  float first, second;
  normal_pair(detail::word_of(b, i & 2u), detail::word_of(b, (i & 2u) + 1u), first, second);
  return math::detail::blend(0u - uint32_t(i & 1u), second, first);
}
}  // namespace detail

}  // namespace tg
