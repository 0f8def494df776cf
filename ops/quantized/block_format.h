/// @file
/// Values of blocks (core/block_format.h). Products are exact in f32 and at most one operation rounds, so all backends
/// give the same bits, with and without FMAs.
#pragma once
#include <tapegrad/core/block_format.h>
#include <tapegrad/core/half.h>
#include <tapegrad/core/math.h>

#include <array>
#include <iterator>
#include <utility>

namespace tg {

namespace detail {

inline constexpr std::array<float, 16> kNf4Values{
    -1.0f,         -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.18477343f, -0.0910500363f, 0.0f,
    0.0795802996f, 0.160930201f,  0.246112302f,  0.337915242f,  0.440709829f,  0.562617004f, 0.722956836f,   1.0f};

// Reads one block. Other readers have one per lane.
struct BlockBytes {
  const uint8_t* p;
  TG_HD_INLINE int byte(int at) const { return p[at]; }
  TG_HD_INLINE int bit(int at, int i) const { return word(at) >> i & 1; }
  TG_HD_INLINE int word(int at) const {
    return p[at] | p[at + 1] << 8 | p[at + 2] << 16 | int(uint32_t(p[at + 3]) << 24);
  }
  TG_HD_INLINE float half(int at) const {
    f16 x;
    x.bits = uint16_t(p[at] | p[at + 1] << 8);
    return x;
  }
  TG_HD_INLINE float single(int at) const { return math::detail::float_of(uint32_t(word(at))); }
  TG_HD_INLINE static float real(int x) { return float(x); }
  TG_HD_INLINE static float nf4(int q) {
    constexpr auto kValues = kNf4Values;  // device code cannot refer to the other
    return kValues.begin()[q];
  }
};
template <class Real> struct RunScale {
  Real d, m;
};
// Runs of kRun elements share a scale. Element run * kRun + i is value(b, scale(b, run), run, i).
template <BlockFormat F> struct Block {
  static constexpr int kBytes = layout_of_block(F).bytes;
  static constexpr bool kSuper = F == BlockFormat::q4_k || F == BlockFormat::q5_k;
  static constexpr bool kMinimum = F == BlockFormat::q4_1 || F == BlockFormat::q5_1;
  static constexpr bool kFive = F == BlockFormat::q5_0 || F == BlockFormat::q5_1;
  static constexpr int kRun = F == BlockFormat::nf4 ? 64 : F == BlockFormat::q8_0 || kSuper ? 32 : 16;
  static constexpr int kRuns = layout_of_block(F).elements / kRun;

  template <class Bytes> TG_HD_INLINE static auto scale(const Bytes& b, int run) {
    using Real = decltype(b.half(0));
    if constexpr (F == BlockFormat::nf4) {
      return RunScale<Real>{b.single(0), {}};
    } else if constexpr (F == BlockFormat::q6_k) {
      return RunScale<Real>{b.half(208) * (b.real(b.byte(192 + run) ^ 128) - 128.0f), {}};
    } else if constexpr (kSuper) {
      const auto s = [&](int i) { return b.byte(4 + i); };
      const auto scale = run < 4 ? s(run) & 63 : (s(run + 4) & 15) | (s(run - 4) >> 6) << 4;
      const auto minimum = run < 4 ? s(run + 4) & 63 : s(run + 4) >> 4 | (s(run) >> 6) << 4;
      return RunScale<Real>{b.half(0) * b.real(scale), -(b.half(2) * b.real(minimum))};
    } else {
      return RunScale<Real>{b.half(0), kMinimum ? b.half(2) : Real{}};
    }
  }
  template <class Bytes, class Real>
  TG_HD_INLINE static Real value(const Bytes& b, const RunScale<Real>& s, int run, int i) {
    if constexpr (F == BlockFormat::nf4) {
      return b.nf4(b.byte(4 + i / 2) >> (i % 2 ? 0 : 4) & 15) * s.d;
    } else if constexpr (F == BlockFormat::q8_0) {
      return s.d * (b.real(b.byte(2 + i) ^ 128) - 128.0f);
    } else if constexpr (F == BlockFormat::q6_k) {
      const int half = run / 8, part = run % 8 / 2, at = run % 2 * 16 + i;
      const auto low = b.byte(64 * half + part % 2 * 32 + at) >> part / 2 * 4 & 15;
      const auto high = b.byte(128 + 32 * half + at) >> 2 * part & 3;
      return s.d * (b.real(low | high << 4) - 32.0f);
    } else if constexpr (kSuper) {
      constexpr bool five = F == BlockFormat::q5_k;
      const auto low = b.byte((five ? 48 : 16) + run / 2 * 32 + i) >> run % 2 * 4 & 15;
      if constexpr (five) return s.d * b.real(low | (b.byte(16 + i) >> run & 1) << 4) + s.m;
      return s.d * b.real(low) + s.m;
    } else {
      constexpr int kFirst = kMinimum ? 4 : 2;
      auto q = b.byte(kFirst + (kFive ? 4 : 0) + i) >> run * 4 & 15;
      if constexpr (kFive) q = q | b.bit(kFirst, run * 16 + i) << 4;
      if constexpr (kMinimum) return s.d * b.real(q) + s.m;
      return s.d * (b.real(q) - (kFive ? 16.0f : 8.0f));
    }
  }
};
// Calls f.template operator()<F>() for a format.
template <class Fn> TG_HD_INLINE void visit_block_format(BlockFormat f, Fn&& fn) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    ((size_t(f) == I ? fn.template operator()<BlockFormat(I)>() : void()), ...);
  }(std::make_index_sequence<std::size(kBlockLayouts)>());
}
template <BlockFormat F> TG_HD_INLINE void dequantize_block(const uint8_t* __restrict block, float* __restrict values) {
  using B = Block<F>;
  const BlockBytes b{block};
  for (int run = 0; run < B::kRuns; ++run) {
    const auto s = B::scale(b, run);
    for (int i = 0; i < B::kRun; ++i) values[run * B::kRun + i] = B::value(b, s, run, i);
  }
}
TG_HD_INLINE void dequantize_block(BlockFormat f, const uint8_t* block, float* values) {
  visit_block_format(f, [&]<BlockFormat F>() { dequantize_block<F>(block, values); });
}
// A block of nf4 with the bits of bitsandbytes 0.50.2 on a CPU: ties take the lower value. False unless all are finite.
TG_HD_INLINE bool quantize_nf4_block(const float* x, uint8_t* to) {
  constexpr auto kValues = kNf4Values;
  uint32_t most = 0;
  for (int i = 0; i < 64; ++i) {
    const uint32_t magnitude = math::detail::bits_of(x[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  if (most >= 0x7f800000u) return false;
  for (int i = 0; i < 4; ++i) to[i] = uint8_t(most >> 8 * i);
  const float absmax = math::detail::float_of(most), factor = 1.0f / (absmax > 1e-38f ? absmax : 1e-38f);
  int q[64] = {};
  for (int j = 0; j < 15; ++j) {
    const float bound = (kValues.begin()[j] + kValues.begin()[j + 1]) / 2;
    for (int i = 0; i < 64; ++i) q[i] += x[i] * factor > bound;
  }
  for (int i = 0; i < 32; ++i) to[4 + i] = uint8_t(q[2 * i] << 4 | q[2 * i + 1]);
  return true;
}

}  // namespace detail
}  // namespace tg
