// Four rows are packed into 32-bit lanes, transposed in registers and written as full cache lines
// (cpu/kernels/quantize.cpp).
#pragma once
#include <tapegrad/cpu/runtime/thread_pool.h>
#include <tapegrad/cpu/simd/quantized.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/cpu/simd/transpose.h>

#include <algorithm>
#include <cstring>
#include <vector>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tg::cpu::TG_ISA_NS {

template <class T> struct Lines {
  const T* p;
  int64_t lines, n, ld;
  const T* operator[](int64_t l) const { return p + l * ld; }
};

namespace transposing {
constexpr int64_t kLine = 64;                    // rows per cache line of int8
constexpr int64_t kTall = 2 * kLine;             // rows of a block
constexpr int64_t kWide = 1024;                  // most columns of a block in L2
constexpr int64_t kPitch = kWide + 16;           // not a power of two: L1 aliasing
constexpr int64_t kStreamed = int64_t(1) << 20;  // bytes: stores bypass caches above
constexpr int kLanes = TG_ISA_LEVEL == 4 ? 16 : TG_ISA_LEVEL == 3 ? 8 : 4;
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
inline thread_local Scratch t_block;

// Quantizes n columns of four rows, four int8 per column, by the factor by[i] or else absmax; by[0] for all if Step is
// 0.
template <int Step, bool Factor, class T>
inline void encode_places(const T* a, const T* b, const T* c, const T* d, int64_t n, const float* by,
                          uint32_t* __restrict to) {
  const auto byte = [](T x, float m) {
    return uint32_t(Factor ? by_product(float(x), m) : by_quotient(float(x), m)) & 255u;
  };
  for (int64_t i = 0; i < n; ++i) {
    const float m = by[i * Step];
    to[i] = byte(a[i], m) | byte(b[i], m) << 8 | byte(c[i], m) << 16 | byte(d[i], m) << 24;
  }
}
// With prefetch of `ahead`: the hardware's stops at a page.
template <int Step, bool Factor, class T>
void encode_four(const T* a, const T* b, const T* c, const T* d, int64_t n, int64_t ahead, const float* by,
                 uint32_t* to) {
  constexpr int64_t kFetched = kLine / int64_t(sizeof(T));
  const auto some = [&](int64_t i, int64_t count) {
    encode_places<Step, Factor>(a + i, b + i, c + i, d + i, count, by + i * Step, to + i);
  };
  int64_t i = 0;
  for (; i + kFetched <= n; i += kFetched) {
    for (const T* const line : {a, b, c, d}) __builtin_prefetch(line + i + ahead);
    some(i, kFetched);
  }
  some(i, n - i);
}
template <int Step, class T> struct Scales {
  const float* absmax;
  std::vector<float> factors;
  std::vector<int64_t> without;  // columns without a factor
  Scales(const float* a, int64_t n) : absmax(a) {
    if constexpr (sizeof(T) == 2) {
      factors.resize(size_t(Step ? n : 1));
      for (size_t i = 0; i < factors.size(); ++i)
        has_factor<T>(a[i]) ? void(factors[i] = factor_of(a[i])) : without.push_back(int64_t(i));
    }
  }
  void encode(const T* a, const T* b, const T* c, const T* d, int64_t i, int64_t n, int64_t ahead, uint32_t* to) const {
    if (sizeof(T) != 2 || (Step == 0 && !without.empty()))
      return encode_four<Step, false>(a, b, c, d, n, ahead, absmax + i * Step, to);
    encode_four<Step, true>(a, b, c, d, n, ahead, factors.data() + i * Step, to);
    for (auto at = std::lower_bound(without.begin(), without.end(), i); at != without.end() && *at < i + n; ++at) {
      const int64_t j = *at - i;
      encode_four<0, false>(a + j, b + j, c + j, d + j, 1, 0, absmax + *at, to + j);
    }
  }
};

inline void store(const std::byte* line, int64_t some, int8_t* to, bool streamed) {
#ifdef __SSE2__
  if (streamed) {
    for (int i = 0; i < 4; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_load_si128(reinterpret_cast<const __m128i*>(line) + i));
    return;
  }
#endif
  if (some == kLine)
    std::memcpy(to, line, kLine);
  else
    std::memcpy(to, line, size_t(some));
}
inline void store_columns(const uint32_t* words, int64_t some, int64_t n, int8_t* to, int64_t ld, bool streamed) {
  constexpr int kParts = kLine / 4 / kLanes;
  alignas(64) std::byte lines[kLanes][kLine];
  for (int64_t j = 0; j < n; j += kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Words x[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) std::memcpy(&x[i], words + (part * kLanes + i) * kPitch + j, sizeof(Words));
      transpose_words<uint32_t>(x);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) std::memcpy(lines[i] + part * sizeof(Words), &x[i], sizeof(Words));
    }
    for (int64_t k = 0; k < std::min<int64_t>(kLanes, n - j); ++k)
      store(lines[k], some, to + (j + k) * ld, streamed && some == kLine);
  }
}
}  // namespace transposing

// To (n, lines). absmax[i] > 0 belongs to column i, or to all if Step is zero. Blocks run backwards: the absmax pass
// has just read the last.
template <int Step, class T> void encode_transposed(const Lines<T>& x, const float* absmax, int8_t* to) {
  using namespace transposing;
  const int64_t down = (x.lines + kTall - 1) / kTall, across = (x.n + kWide - 1) / kWide;
  const bool streamed = x.lines * x.n >= kStreamed && x.lines % kLine == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
  const Scales<Step, T> scales(absmax, x.n);
  parallel_for(down * across, [&](int64_t t) {
    const int64_t block = down * across - 1 - t, first = block / across * kTall, i = block % across * kWide;
    const int64_t some = std::min(kTall, x.lines - first), width = std::min(kWide, x.n - i);
    uint32_t* const words = t_block.get<uint32_t>(kTall / 4 * kPitch);
    for (int64_t l = 0; l < some; l += 4) {
      const auto line = [&](int64_t at) { return x[first + std::min(at, some - 1)] + i; };
      scales.encode(line(l), line(l + 1), line(l + 2), line(l + 3), i, width, 4 * x.ld, words + l / 4 * kPitch);
    }
    for (int64_t l = 0; l < some; l += kLine)
      store_columns(words + l / 4 * kPitch, std::min(kLine, some - l), width, to + i * x.lines + first + l, x.lines,
                    streamed);
#ifdef __SSE2__
    if (streamed) _mm_sfence();  // streaming stores need a fence
#endif
  });
}

}  // namespace tg::cpu::TG_ISA_NS
