// MatmulPrecision::medium rounds operands to bf16. `high` splits elements into three bf16 parts, each the rounded
// remainder, and sums the six largest of nine GEMMs; the others are below f32's rounding (Henry, Tang and Heinecke,
// "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/runtime/product_path.h>
#include <tapegrad/cpu/simd/scratch.h>

#include <algorithm>
#include <array>
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm/gemm_packed_avx512.h>
#endif

namespace tg::cpu::TG_ISA_NS {
#if TG_ISA_LEVEL == 4
namespace {
using namespace packed;
constexpr int64_t kMaxSmallM = 16;        // reading B bounds the time up to this m
constexpr int64_t kWorthwhile = 1 << 20;  // multiply-adds
constexpr int64_t kSerial = 1 << 21;      // multiply-adds; fewer run serially
constexpr int64_t kTileDepth = kRow / 2;
thread_local Scratch t_largest, t_copy;

// bf16 in the upper half of each lane, ties to even. NaN stays NaN.
__m512i rounded(__m512i x) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512 value = _mm512_castsi512_ps(x);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_and_si512(_mm512_mask_or_epi32(up, nan, x, _mm512_set1_epi32(0x400000)),
                          _mm512_set1_epi32(int(0xffff0000)));
}
// rounded() of the first parts. Guard must see elements that it flushes to 0.
__m512i rounded_first(__m512i x) {
  const __m512i size = _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff)), one = _mm512_set1_epi32(1);
  const __mmask16 lost = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(size, one), _mm512_set1_epi32(0x8000));
  return _mm512_mask_or_epi32(rounded(x), lost, rounded(x), _mm512_set1_epi32(0x10000));
}
__m512i minus(__m512i a, __m512i b) {
  return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

template <int Parts, bool OfB>
void pack_tile_of_parts(MatView<float> v, int64_t rows, int64_t depth, std::byte* to, int64_t part) {
  if (v.col != 1 && v.row != 1) {
    float* const copy = t_copy.get<float>(16 * kTileDepth);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t t = 0; t < depth; ++t) copy[i * kTileDepth + t] = v.p[i * v.row + t * v.col];
    v = {copy, kTileDepth, 1};
  }
  const bool along = v.col == 1;
  __m512i x[Parts][16];
  const auto split = [&](int64_t i, __m512i first,
                         __m512i second) {  // two columns adjacent in k, or halves of a row
    alignas(64) static constexpr auto kUpper = [] {
      std::array<uint16_t, 32> at{};
      for (size_t j = 0; j < 32; ++j) at[j] = uint16_t(2 * j + 1);
      return at;
    }();
#pragma GCC unroll 3
    for (int p = 0; p < Parts; ++p) {
      const auto round = Parts > 1 && p == 0 ? rounded_first : rounded;
      const __m512i a = round(first), b = round(second);
      x[p][i] = along ? _mm512_permutex2var_epi16(a, _mm512_load_si512(kUpper.data()), b)
                      : _mm512_or_si512(_mm512_srli_epi32(a, 16), b);
      if (p + 1 < Parts) first = minus(first, a), second = minus(second, b);
    }
  };
  const auto some = [](int64_t n) { return __mmask16(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1 : 0); };
  for (int64_t i = 0; i < 16; ++i) {
    const auto line = [&](int64_t h) {
      const int64_t at = along ? i : 2 * i + h;
      const __mmask16 lanes = along ? some(i < rows ? depth - 16 * h : 0) : some(at < depth ? rows : 0);
      const float* const p = v.p + (lanes == 0 ? 0 : along ? i * v.row + 16 * h : at * v.col);
      return _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes, p));
    };
    split(i, line(0), line(1));
  }
  for (int p = 0; p < Parts; ++p) {
    if (along == OfB) transpose_words<uint32_t>(x[p]);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + p * part + i * kRow, x[p][i]);
  }
}
template <int Parts, bool OfB>
void pack_parts(MatView<float> v, int64_t rows, int64_t depth, std::byte* to, int64_t part) {
  for (int64_t i = 0; i < kSide; i += 16) {
    const int64_t some = std::clamp<int64_t>(rows - i, 0, 16);
    pack_tile_of_parts<Parts, OfB>(some > 0 ? v.at(i, 0) : v, some, depth, to + i * kRow, part);
  }
}

// Rows that three parts cannot represent: bf16 instructions flush denormals and have f32's exponents.
class Guard {
 public:
  Guard(int64_t m, int64_t n) : m_(m), n_(n), largest_(t_largest.get<uint16_t>(padded(m) + padded(n))) {
    std::fill_n(largest_, padded(m) + padded(n), uint16_t(0));
  }
  // Records absmax per row of A or column of B, as bf16 bits of first parts.
  void look(bool of_b, int64_t first, int64_t steps, const std::byte* panel) const {
    uint16_t* const to = largest_ + (of_b ? padded(m_) : 0) + first;
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), lower = _mm512_set1_epi32(0xffff);
    const auto larger_half = [&](__m512i x) {
      return _mm512_max_epu32(_mm512_and_si512(x, lower), _mm512_srli_epi32(x, 16));
    };
    for (int64_t r = 0; r < kSide; r += of_b ? 16 : 1) {
      __m512i most = _mm512_setzero_si512();
      for (int64_t s = 0; s < steps; ++s)
        for (int64_t t = 0; t < (of_b ? 16 : 1); ++t)
          most = _mm512_max_epu16(most,
                                  _mm512_and_si512(_mm512_load_si512(panel + s * kStep + (r + t) * kRow), magnitude));
      if (of_b) {
        const __m256i all = _mm512_cvtepi32_epi16(larger_half(most)), before = _mm256_loadu_epi16(to + r);
        _mm256_storeu_epi16(to + r, _mm256_max_epu16(all, before));
      } else {
        to[r] = std::max(to[r], uint16_t(_mm512_reduce_max_epu32(larger_half(most))));
      }
    }
  }
  template <class F> void for_others(F&& redo) const {
    int least = kInfinite, most = 0;  // exponents of B's columns
    for (int64_t j = 0; j < n_; ++j)
      if (const uint16_t x = largest_[padded(m_) + j]) {
        least = std::min(least, exponent(x)), most = std::max(most, exponent(x));
        if (exponent(x) == kInfinite || exponent(x) < kLeast) return redo(0, m_);
      }
    const auto wrong = [&](int64_t i) {
      const int e = exponent(largest_[i]);
      return largest_[i] != 0 &&
             (e == kInfinite || e < kLeast || e + most > kMostOfProduct || e + least < kLeastOfProduct);
    };
    for (int64_t i = 0, end; i < m_; i = end) {
      for (end = i + 1; end < m_ && wrong(end) == wrong(i); ++end) {
      }
      if (wrong(i)) redo(i, end - i);
    }
  }

 private:
  // Biased f32 exponents. Rows with absmax 2^-96 or more, and their dot products, leave 30 bits above the denormals;
  // sums of 2^16 terms below 2^112 are finite.
  static constexpr int kInfinite = 255, kLeast = 127 - 96, kLeastOfProduct = 254 - 96, kMostOfProduct = 254 + 110;
  static int exponent(uint16_t bits) { return bits >> 7; }
  static int64_t padded(int64_t n) { return ceil_div(n, kSide) * kSide; }

  int64_t m_, n_;
  uint16_t* largest_;
};

template <int Parts> Kernels<float, float> kernels(bool amx) {
  return {.step = kTileDepth,
          .pack_a = pack_parts<Parts, false>,
          .pack_b = pack_parts<Parts, true>,
          .block = amx ? amx_block<AmxBf16, float> : avx512_block<Avx512Bf16, float>,
          .enter = amx ? enter_tiles : nullptr,
          .leave = amx ? leave_tiles : nullptr,
          .parts = Parts};
}
}  // namespace
#endif

void gemm_as(MatmulPrecision precision, int64_t m, int64_t n, int64_t k, MatView<float> a, MatView<float> b, float* c,
             int64_t ldc, GemmOptions<float> o) {
#if TG_ISA_LEVEL == 4
  const bool high = precision == MatmulPrecision::high;
  const Bf16Path path = precision == MatmulPrecision::highest ? Bf16Path::f32 : high ? bf16_parts_path() : bf16_path();
  if (path != Bf16Path::f32 && !o.accumulate && m > kMaxSmallM && m * n * k >= kWorthwhile) {
    const auto store = [&](int64_t i, int64_t j, int64_t count, float* sums) {
      float* const row = c + i * ldc + j;
      std::copy_n(sums, count, row);
      if (o.finish) (*o.finish)(row, j, count);
    };
    const bool amx = path == Bf16Path::amx, parallel = m * n * k >= kSerial;
    packed::Product<float, float> product{m, n, k, a, b, store};
    if (!high) return Blocked(product, kernels<1>(amx), parallel).run();
    const Guard guard(m, n);
    const auto look = [&](bool of_b, int64_t first, int64_t steps, const std::byte* panel) {
      guard.look(of_b, first, steps, panel);
    };
    const FunctionRef<void(bool, int64_t, int64_t, const std::byte*)> each(look);
    product.packed = &each;
    Blocked(product, kernels<3>(amx), parallel).run();
    guard.for_others([&](int64_t i, int64_t rows) { gemm<float>(rows, n, k, a.at(i, 0), b, c + i * ldc, ldc, o); });
    return;
  }
#endif
  (void)precision;
  gemm<float>(m, n, k, a, b, c, ldc, o);
}
}  // namespace tg::cpu::TG_ISA_NS
