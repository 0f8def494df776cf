#include <tapegrad/core/error.h>
#include <tapegrad/core/rng.h>

#include <cmath>
#include <utility>

// The bulk loops once more for x86-64 processors with fma, which the baseline lacks: there each fma is a call. Both
// give the same bits, as everything here is exact or an explicit fma.
#if defined(__x86_64__) && !defined(__FMA__)
#define TG_FMA_VARIANT 1
#else
#define TG_FMA_VARIANT 0
#endif

namespace tg {
namespace {

struct Affine {
  float scale, shift;
};

TG_HD_INLINE void uniform_blocks(Rng at, float* out, uint64_t blocks, Affine to) {
  for (uint64_t b = 0; b < blocks; ++b) {
    const Words w = random_block(at, b);
    out[4 * b] = math::detail::fma(uniform(w.x), to.scale, to.shift);
    out[4 * b + 1] = math::detail::fma(uniform(w.y), to.scale, to.shift);
    out[4 * b + 2] = math::detail::fma(uniform(w.z), to.scale, to.shift);
    out[4 * b + 3] = math::detail::fma(uniform(w.w), to.scale, to.shift);
  }
}

TG_HD_INLINE void normal_blocks(Rng at, float* out, uint64_t blocks, Affine to) {
  for (uint64_t b = 0; b < blocks; ++b) {
    const Words w = random_block(at, b);
    float n0, n1, n2, n3;
    normal_pair(w.x, w.y, n0, n1);
    normal_pair(w.z, w.w, n2, n3);
    out[4 * b] = math::detail::fma(n0, to.scale, to.shift);
    out[4 * b + 1] = math::detail::fma(n1, to.scale, to.shift);
    out[4 * b + 2] = math::detail::fma(n2, to.scale, to.shift);
    out[4 * b + 3] = math::detail::fma(n3, to.scale, to.shift);
  }
}

TG_HD_INLINE void truncated_blocks(Rng at, float* out, uint64_t blocks, Affine to) {
  for (uint64_t b = 0; b < blocks; ++b) {
    const Words w = random_block(at, b);
    out[4 * b] = math::detail::fma(truncated_normal(w.x), to.scale, to.shift);
    out[4 * b + 1] = math::detail::fma(truncated_normal(w.y), to.scale, to.shift);
    out[4 * b + 2] = math::detail::fma(truncated_normal(w.z), to.scale, to.shift);
    out[4 * b + 3] = math::detail::fma(truncated_normal(w.w), to.scale, to.shift);
  }
}

#if TG_FMA_VARIANT
__attribute__((target("avx2,fma"))) void uniform_blocks_fma(Rng at, float* out, uint64_t blocks, Affine to) {
  uniform_blocks(at, out, blocks, to);
}
__attribute__((target("avx2,fma"))) void normal_blocks_fma(Rng at, float* out, uint64_t blocks, Affine to) {
  normal_blocks(at, out, blocks, to);
}
__attribute__((target("avx2,fma"))) void truncated_blocks_fma(Rng at, float* out, uint64_t blocks, Affine to) {
  truncated_blocks(at, out, blocks, to);
}
bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

void check_spread(const char* function, float mean, float stddev) {
  TG_CHECK(std::isfinite(mean) && std::isfinite(stddev) && stddev >= 0, value,
           "[rng] {} with mean {} and standard deviation {}. Both must be finite, the deviation not negative. Correct "
           "the arguments.",
           function, mean, stddev);
}
}  // namespace

Rng Rng::take(uint64_t n) {
  const Rng at = *this;
  offset += n / 4 + (n % 4 != 0);
  return at;
}

Rng Rng::split(uint64_t stream) const {
  // A counter whose upper half is not 0 is never used for drawing.
  const Words w = philox4x32({uint32_t(stream), uint32_t(stream >> 32), 0x73706c69u, 0x74u}, seed);
  return {uint64_t(w.y) << 32 | w.x, 0};
}

uint64_t Rng::below(uint64_t n) {
  TG_CHECK(n > 0, value,
           "[rng] below(0) asks for a number from an empty range. n must be at least 1. Check for empty data first.");
  const uint64_t reject =
      (0 - n) % n;  // 2^64 mod n: without the first that many values, all remainders are equally likely
  for (;;) {
    const Words w = random_block(take(4), 0);
    const uint64_t draw = uint64_t(w.y) << 32 | w.x;
    if (draw >= reject) return draw % n;
  }
}

float Rng::uniform() { return tg::uniform(random_word(take(1), 0)); }
float Rng::normal() { return tg::normal(take(2), 0); }

void Rng::shuffle(std::span<int64_t> items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
}

void Rng::fill_uniform(std::span<float> out, float lo, float hi) {
  TG_CHECK(
      lo <= hi && std::isfinite(lo) && std::isfinite(hi - lo), value,
      "[rng] fill_uniform from {} to {}. The bounds must be finite and ordered, their distance finite. Pass lo <= hi.",
      lo, hi);
  const Rng at = take(out.size());
  const Affine to{hi - lo, lo};
  const uint64_t blocks = out.size() / 4;
#if TG_FMA_VARIANT
  if (has_fma())
    uniform_blocks_fma(at, out.data(), blocks, to);
  else
#endif
    uniform_blocks(at, out.data(), blocks, to);
  for (uint64_t i = 4 * blocks; i < out.size(); ++i)
    out[i] = math::detail::fma(tg::uniform(random_word(at, i)), to.scale, to.shift);
}

void Rng::fill_normal(std::span<float> out, float mean, float stddev) {
  check_spread("fill_normal", mean, stddev);
  const Rng at = take(out.size());
  const Affine to{stddev, mean};
  const uint64_t blocks = out.size() / 4;
#if TG_FMA_VARIANT
  if (has_fma())
    normal_blocks_fma(at, out.data(), blocks, to);
  else
#endif
    normal_blocks(at, out.data(), blocks, to);
  for (uint64_t i = 4 * blocks; i < out.size(); ++i) out[i] = math::detail::fma(tg::normal(at, i), to.scale, to.shift);
}

void Rng::fill_truncated_normal(std::span<float> out, float mean, float stddev) {
  check_spread("fill_truncated_normal", mean, stddev);
  const Rng at = take(out.size());
  const Affine to{stddev, mean};
  const uint64_t blocks = out.size() / 4;
#if TG_FMA_VARIANT
  if (has_fma())
    truncated_blocks_fma(at, out.data(), blocks, to);
  else
#endif
    truncated_blocks(at, out.data(), blocks, to);
  for (uint64_t i = 4 * blocks; i < out.size(); ++i)
    out[i] = math::detail::fma(truncated_normal(random_word(at, i)), to.scale, to.shift);
}

}  // namespace tg
