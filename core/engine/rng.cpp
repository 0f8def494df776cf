#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/rng.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

// Bulk loops for x86-64 with fma; the baseline calls a function for each. Both give the same bits: steps are exact or
// explicit fma.
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
struct Four {  // an array would prevent vectorisation
  float x, y, z, w;
};
struct Uniform {
  TG_HD_INLINE static Four of(Words w) { return {uniform(w.x), uniform(w.y), uniform(w.z), uniform(w.w)}; }
};
struct Normal {
  TG_HD_INLINE static Four of(Words w) {
    Four n;
    detail::normal_pair(w.x, w.y, n.x, n.y);
    detail::normal_pair(w.z, w.w, n.z, n.w);
    return n;
  }
};
struct TruncatedNormal {
  TG_HD_INLINE static Four of(Words w) {
    return {truncated_normal(w.x), truncated_normal(w.y), truncated_normal(w.z), truncated_normal(w.w)};
  }
};

template <class Numbers> TG_HD_INLINE void fill_blocks(Rng at, float* out, uint64_t blocks, Affine to) {
  for (uint64_t b = 0; b < blocks; ++b) {
    const Four n = Numbers::of(detail::random_block(at, b));
    out[4 * b] = math::detail::fma(n.x, to.scale, to.shift);
    out[4 * b + 1] = math::detail::fma(n.y, to.scale, to.shift);
    out[4 * b + 2] = math::detail::fma(n.z, to.scale, to.shift);
    out[4 * b + 3] = math::detail::fma(n.w, to.scale, to.shift);
  }
}
#if TG_FMA_VARIANT
template <class Numbers>
__attribute__((target("avx2,fma"))) void fill_blocks_fma(Rng at, float* out, uint64_t blocks, Affine to) {
  fill_blocks<Numbers>(at, out, blocks, to);
}
#endif
template <class Numbers> void fill(std::span<float> out, Rng at, Affine to) {
  const uint64_t blocks = out.size() / 4;
#if TG_FMA_VARIANT
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    fill_blocks_fma<Numbers>(at, out.data(), blocks, to);
  else
#endif
    fill_blocks<Numbers>(at, out.data(), blocks, to);
  float last[4];
  if (out.size() % 4) fill_blocks<Numbers>({at.seed, at.offset + blocks}, last, 1, to);
  for (uint64_t i = 4 * blocks; i < out.size(); ++i) out[i] = last[i % 4];
}

void check_spread(const char* function, float mean, float stddev) {
  TG_CHECK(std::isfinite(mean) && std::isfinite(stddev) && stddev >= 0, value,
           "[rng] {} with mean {} and standard deviation {}. Both must be finite, the deviation not negative. Correct "
           "the arguments.",
           function, mean, stddev);
}
}  // namespace

Rng Rng::take(uint64_t n) {
  const uint64_t blocks = n / 4 + (n % 4 != 0);
  if (detail::Trace* trace = detail::tracing()) [[unlikely]]
    trace->taken[this] += blocks;
  return {seed, std::atomic_ref(offset).fetch_add(blocks, std::memory_order_relaxed)};
}
namespace {
uint64_t seed_outside(uint64_t seed) {
  const detail::Trace* const trace = detail::tracing();
  return trace ? trace->seed_outside(seed) : seed;
}
Rng drawn(Rng& r, uint64_t n) {
  detail::host_draws();
  const Rng at = r.take(n);
  return {seed_outside(at.seed), at.offset};
}
}  // namespace

Rng Rng::split(uint64_t stream) const {
  // These words differ from all draws, whose counters have upper half 0.
  const Words w =
      detail::philox4x32({uint32_t(stream), uint32_t(stream >> 32), 0x73706c69u, 0x74u}, seed_outside(seed));
  return {uint64_t(w.y) << 32 | w.x, 0};
}

uint64_t Rng::below(uint64_t n) {
  TG_CHECK(n > 0, value,
           "[rng] below(0) asks for a number from an empty range. n must be at least 1. Check for empty data first.");
  const uint64_t reject = (0 - n) % n;  // the remainders of other draws are equally likely
  for (;;) {
    const Words w = detail::random_block(drawn(*this, 4), 0);
    const uint64_t draw = uint64_t(w.y) << 32 | w.x;
    if (draw >= reject) return draw % n;
  }
}

float Rng::uniform() { return tg::uniform(detail::random_word(drawn(*this, 1), 0)); }
float Rng::normal() { return tg::normal(drawn(*this, 2), 0); }

void Rng::shuffle(std::span<int64_t> items) {
  detail::host_draws();
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
}

void Rng::fill_uniform(std::span<float> out, float lo, float hi) {
  TG_CHECK(
      lo <= hi && std::isfinite(lo) && std::isfinite(hi - lo), value,
      "[rng] fill_uniform from {} to {}. The bounds must be finite and ordered, their distance finite. Pass lo <= hi.",
      lo, hi);
  fill<Uniform>(out, drawn(*this, out.size()), {hi - lo, lo});
  const float most = lo < hi ? std::nextafter(hi, lo) : lo;
  for (float& x : out) x = std::min(x, most);
}

void Rng::fill_normal(std::span<float> out, float mean, float stddev) {
  check_spread("fill_normal", mean, stddev);
  fill<Normal>(out, drawn(*this, out.size()), {stddev, mean});
}

void Rng::fill_truncated_normal(std::span<float> out, float mean, float stddev) {
  check_spread("fill_truncated_normal", mean, stddev);
  fill<TruncatedNormal>(out, drawn(*this, out.size()), {stddev, mean});
}

uint64_t detail::permuted(Rng at, uint64_t i, uint64_t n) {
  TG_CHECK(i < n, value, "[permuted] place {} is outside of [0, {}). Places are below n, which must be at least 1.", i,
           n);
  constexpr uint32_t kRounds = 6;
  at.seed = seed_outside(at.seed);
  const int half = std::max(1, (int(std::bit_width(n - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t(1) << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint32_t round = 1; round <= kRounds; ++round) {
      const Words w = detail::philox4x32({uint32_t(right), 0, 0, round}, at.seed);  // halves have at most 32 bits
      left = std::exchange(right, left ^ ((w.x | uint64_t(w.y) << 32) & mask));
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
}  // namespace tg
