// bf16 by AMX for at most 16 rows: B is read once, in place. Bits equal those of packed operands, since tiles add the
// same products, swapped or not, over ascending k.
#pragma once
#include <tapegrad/cpu/gemm/gemm_packed_avx512.h>

namespace tg::cpu::TG_ISA_NS::packed {

class AmxSmallM {
 public:
  explicit AmxSmallM(const Product<bf16, float>& p)
      : p_(p), in_rows_(p.b.col == 1), a_(t_a.get<std::byte>(steps_ * kTile)) {
    for (int64_t s = 0; s < steps_; ++s)
      (in_rows_ ? pack_tile<false, 0, bf16> : pack_tile<true, 0, bf16>)(p.a.at(0, s * kTerms), p.m, depth(s),
                                                                        a_ + s * kTile);
  }
  void run(bool parallel) const {
    // Long segments of rows suit pages and prefetchers. Sums (16 x width) stay in L2.
    const int64_t share = ceil_div(p_.n, parallel ? (in_rows_ ? 1 : 4) * num_threads() : 1);
    const int64_t width = ceil_div(in_rows_ ? std::clamp<int64_t>(share, 256, 4096) : share, kWide) * kWide;
    const Cut cut{p_.m, width, 1, ceil_div(p_.n, width)};
    cut.for_tiles(p_.m, p_.n, parallel, [&](int64_t, int64_t, int64_t j, int64_t cols) {
      enter_tiles();
      in_rows_ ? by_rows(j, cols) : by_columns(j, cols);
      leave_tiles();
    });
  }

 private:
  static constexpr int64_t kTerms = 32, kWide = 64;  // k per step; columns of four tiles
  using Tiles = float[4][16][16];

  int64_t depth(int64_t step) const { return std::min(kTerms, p_.k - step * kTerms); }

  // C's transpose: columns of B, contiguous in k, are left operands as they are. The last 16 may be read twice.
  void by_columns(int64_t j0, int64_t n) const {
    alignas(64) Tiles sums;
    alignas(64) std::byte end[4][kTile];
    const int64_t bytes = p_.b.col * int64_t(sizeof(bf16)), rest = p_.k % kTerms, whole = p_.k - rest;
    for (int64_t j = j0; j < j0 + n; j += kWide) {
      const auto first = [&](int64_t t) { return std::min(j + 16 * t, p_.n - 16); };
      const auto column = [&](int64_t t) { return reinterpret_cast<const std::byte*>(p_.b.at(0, first(t)).p); };
      const std::byte* const b[4] = {column(0), column(1), column(2), column(3)};
      zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
      const auto add = [](const std::byte* a, const std::byte* const* from, int64_t at, int64_t stride) {
        load_tile<7>(a, kRow), load_tile<4>(from[0] + at, stride), AmxBf16::add<0, 4, 7>();
        load_tile<5>(from[1] + at, stride), AmxBf16::add<1, 5, 7>();
        load_tile<6>(from[2] + at, stride), AmxBf16::add<2, 6, 7>();
        load_tile<4>(from[3] + at, stride), AmxBf16::add<3, 4, 7>();
      };
      for (int64_t t = 0; t < whole; t += kTerms) add(a_ + t / kTerms * kTile, b, 2 * t, bytes);
      if (rest != 0) {
        for (int64_t t = 0; t < 4; ++t)
          pack_tile<false, 0, bf16>(p_.b.at(whole, first(t)).transposed(), 16, rest, end[t]);
        const std::byte* const ends[4] = {end[0], end[1], end[2], end[3]};
        add(a_ + whole / kTerms * kTile, ends, 0, kRow);
      }
      store_tile<0>(sums, kRow), store_tile<1, kTile>(sums, kRow), store_tile<2, 2 * kTile>(sums, kRow);
      store_tile<3, 3 * kTile>(sums, kRow);
      for (int64_t t = 0, skip; t < 4 && (skip = j + 16 * t - first(t)) < 16; ++t)
        for (int64_t i = 0; i < p_.m; ++i) {
          float row[16];
          for (int64_t c = 0; c < 16; ++c) row[c] = sums[t][c][i];
          p_.store(i, first(t) + skip, 16 - skip, row + skip);
        }
    }
  }
  // Pairs of rows of B are interleaved in L1.
  void by_rows(int64_t j0, int64_t n) const {
    Tiles* const sums = t_sums.get<Tiles>(ceil_div(n, kWide));
    std::memset(sums, 0, sizeof(Tiles) * size_t(ceil_div(n, kWide)));
    alignas(64) std::byte panel[4][kTile];
    __m512i low, high;
    for (int i = 0; i < 32; ++i) reinterpret_cast<uint16_t*>(&low)[i] = uint16_t(i / 2 + i % 2 * 32);
    high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t s = 0; s < steps_; ++s) {
      load_tile<7>(a_ + s * kTile, kRow);
      for (int64_t j = 0; j < n; j += kWide) {
        const bf16* const b = p_.b.at(s * kTerms, j0 + j).p;
        const __mmask64 some = ~__mmask64(0) >> std::max<int64_t>(0, kWide - (n - j));
        const auto load = [&](int64_t t, int64_t half) {
          return _mm512_maskz_loadu_epi16(__mmask32(t < depth(s) ? some >> 32 * half : 0),
                                          b + t * p_.b.row + 32 * half);
        };
        for (int64_t t = 0; t < 16; ++t)
          for (int64_t half = 0; half < 2; ++half) {
            const __m512i x = load(2 * t, half), y = load(2 * t + 1, half);
            _mm512_store_si512(panel[2 * half] + t * kRow, _mm512_permutex2var_epi16(x, low, y));
            _mm512_store_si512(panel[2 * half + 1] + t * kRow, _mm512_permutex2var_epi16(x, high, y));
          }
        Tiles& c = sums[j / kWide];
        load_tile<0>(c, kRow), load_tile<1, kTile>(c, kRow), load_tile<2, 2 * kTile>(c, kRow);
        load_tile<3, 3 * kTile>(c, kRow), load_tile<4>(panel, kRow), AmxBf16::add<0, 7, 4>();
        load_tile<5, kTile>(panel, kRow), AmxBf16::add<1, 7, 5>();
        load_tile<6, 2 * kTile>(panel, kRow), AmxBf16::add<2, 7, 6>();
        load_tile<4, 3 * kTile>(panel, kRow), AmxBf16::add<3, 7, 4>();
        store_tile<0>(c, kRow), store_tile<1, kTile>(c, kRow), store_tile<2, 2 * kTile>(c, kRow);
        store_tile<3, 3 * kTile>(c, kRow);
      }
    }
    for (int64_t i = 0; i < p_.m; ++i)
      for (int64_t j = 0; j < n; j += 16)
        p_.store(i, j0 + j, std::min<int64_t>(16, n - j), sums[j / kWide][j % kWide / 16][i]);
  }

  const Product<bf16, float> p_;
  bool in_rows_;
  int64_t steps_ = ceil_div(p_.k, kTerms);
  std::byte* a_;  // (steps, tile)
};
}  // namespace tg::cpu::TG_ISA_NS::packed
