/// @file
/// The arithmetic of AdamW and SGD, one source for all kernels.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/ops/training/optim_step.h>

#include <cmath>

namespace tg::op {

/// Key of random words, by seed, tensor and step.
struct RoundingKey {
  uint32_t low = 0, high = 0;
};
/// Random word of element i: lowbias32 (Wellons, Prospecting for hash functions, 2018), mixed with key.high. Philox
/// would take longer than the rest of a step on a CPU.
TG_HD_INLINE uint32_t rounding_word(RoundingKey key, uint32_t i) {
  uint32_t x = i ^ key.low;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15 ^ key.high) * 0x846ca68bu;
  return x ^ x >> 16;
}
/// Rounds x to an adjacent bf16 by 16 random bits, with mean x; towards 0 beyond the largest finite bf16.
TG_HD_INLINE bf16 stochastic_bf16(float x, uint32_t random) {
  const uint32_t u = math::detail::bits_of(x), inside = 0u - uint32_t(math::detail::abs(x) < 0x1.fep127f);
  const uint32_t nan = 0u - uint32_t(x != x);  // see bf16(x)
  bf16 y;
  y.bits = uint16_t(((u + (random & 0xffffu & inside)) >> 16 & ~nan) | (nan & 0x7fffu));
  return y;
}

/// An f32 as the nearest bf16, ties away from 0, and its 16 low bits.
struct SplitWeight {
  bf16 high;
  uint16_t low;
};
/// True if x is finite and its nearest bf16 is not: |x| >= 0x1.ffp127.
TG_HD_INLINE bool beyond_split(float x) { return (math::detail::bits_of(x) & 0x7fffffffu) - 0x7f7f8000u < 0x8000u; }
/// Every NaN becomes the quiet one of its sign, and x beyond_split() the nearest that is not.
TG_HD_INLINE SplitWeight split(float x) {
  const uint32_t bits = math::detail::bits_of(x), sign = bits & 0x80000000u;
  const uint32_t nan = 0u - uint32_t(x != x), beyond = 0u - uint32_t(beyond_split(x));
  const uint32_t u = (bits & ~(nan | beyond)) | (nan & (sign | 0x7fc00000u)) | (beyond & (sign | 0x7f7f7fffu));
  SplitWeight s;
  s.high.bits = uint16_t((u + 0x8000u) >> 16), s.low = uint16_t(u);
  return s;
}
/// The f32 of split().
TG_HD_INLINE float join(bf16 high, uint16_t low) {
  return math::detail::float_of((uint32_t(high.bits) << 16) + (uint32_t(low) ^ 0x8000u) - 0x8000u);
}

/// Scalars of a tensor's AdamW step: computed in double, used in T.
template <class T> struct AdamWNumbers {
  T beta1, rest1, beta2, rest2, eps;
  WeightDecay kind;
  struct Now {            ///< changes every step
    T rate, root, decay;  ///< weight_decay if l2, else 1 - rate weight_decay
    RoundingKey key;
  } now;

  AdamWNumbers() = default;
  template <class Op> AdamWNumbers(const Op& op, const AdamWOverrides& x) : eps(T(op.o.eps)), kind(op.o.decay) {
    const double b1 = *x.beta1, b2 = *x.beta2, lr = op.lr * x.lr_scale;
    beta1 = T(b1), rest1 = T(1 - b1), beta2 = T(b2), rest2 = T(1 - b2);
    const double first = 1 - math::detail::own_pow(b1, double(op.t)),
                 second = std::sqrt(1 - math::detail::own_pow(b2, double(op.t)));
    const bool corrected = op.o.eps_placement == EpsPlacement::corrected;
    now.rate = T(corrected ? lr / first : lr * second / first);
    now.root = T(corrected ? 1 / second : 1);
    now.decay = T(kind == WeightDecay::l2 ? *x.weight_decay : 1 - lr * *x.weight_decay);
    if (!x.stream) return;
    const Words key = detail::random_block(Rng{op.o.seed}.split(*x.stream), uint64_t(op.t));
    now.key = {key.x, key.y};
  }
  struct Decay {  ///< factors of the weight
    T before, after, l2;
  };
  TG_HD_INLINE Decay decay(const Now& s) const {
    return {kind == WeightDecay::before ? s.decay : T(1), kind == WeightDecay::after ? s.decay : T(1),
            kind == WeightDecay::l2 ? s.decay : T(0)};
  }
  /// Steps one element. kExact: the same bits on every target.
  template <bool kExact>
  TG_HD_INLINE void update(const Now& s, const Decay& d, T clip, T grad, T& w, T& m, T& v) const {
    if constexpr (kExact) {
      using math::detail::fma;
      const T g = fma(grad, clip, d.l2 * w);
      m = fma(beta1, m, rest1 * g);
      v = fma(beta2, v, rest2 * (g * g));
      w = fma(-s.rate, m / fma(math::sqrt(v), s.root, eps), w * d.before) * d.after;
    } else {
      const T g = grad * clip + d.l2 * w;
      m = beta1 * m + rest1 * g;
      v = beta2 * v + rest2 * (g * g);
      w = (w * d.before - s.rate * (m / (math::sqrt(v) * s.root + eps))) * d.after;
    }
  }
};

/// Factors of a tensor's SGD step: computed in double, used in T.
template <class T> struct SgdNumbers {
  T momentum, decay;
  struct Now {
    T keep, take, rate;
  } now;

  SgdNumbers() = default;
  SgdNumbers(const SgdStep& op, const SgdOverrides& x) : momentum(T(op.o.momentum)), decay(T(*x.weight_decay)) {
    const bool first = op.t == 1;
    now = {T(first ? 0 : op.o.momentum), T(first ? 1 : 1 - op.o.dampening), T(op.lr * x.lr_scale)};
  }
};

}  // namespace tg::op
