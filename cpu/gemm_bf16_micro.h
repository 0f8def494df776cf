// Packing and blocks of the bf16 products (cpu/gemm_bf16.cpp, its only user) on AMX tiles and by vdpbf16ps, for
// AVX-512 machines. Both read the same packed memory. A step is 32 elements of k. Of A: two tiles of 16 rows, each row
// 32 neighbours in k. Of B: two tiles of 16 columns, each of 16 rows that hold two neighbours in k of every column.
// Missing rows, columns and elements of k are zeros.
#pragma once
#include <tapegrad/cpu/gemm.h>

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace tg::cpu::TG_ISA_NS::micro_bf16 {
inline constexpr int64_t kSide = 32, kStep = 32;  // a block of C is kSide x kSide
inline constexpr int64_t kTile = 16 * 32;         // elements of a tile, 1 KiB
inline constexpr int64_t kStepSize = 2 * kTile;   // elements of a packed step

// 16 x 16 elements of 32 bits, transposed.
inline void transpose(__m512i (&x)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      b[4 * i + 2 * h] = _mm512_unpacklo_epi64(a[4 * i + h], a[4 * i + 2 + h]);
      b[4 * i + 2 * h + 1] = _mm512_unpackhi_epi64(a[4 * i + h], a[4 * i + 2 + h]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even0 = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88), odd0 = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    const __m512i even1 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88),
                  odd1 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    x[i] = _mm512_shuffle_i32x4(even0, even1, 0x88), x[4 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    x[8 + i] = _mm512_shuffle_i32x4(even0, even1, 0xdd), x[12 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
  }
}

// One tile of v, whose rows are those of A or the columns of B: element (i, t) is row i's at t of k. `rows` and `depth`
// of it count, at most 16 and 32. A's layout for Pairs = false, B's for true.
template <bool Pairs> void pack_tile(MatView<bf16> v, int64_t rows, int64_t depth, bf16* to) {
  alignas(64) bf16 copy[kTile];
  if (v.col != 1 && v.row != 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t t = 0; t < depth; ++t) copy[i * kStep + t] = v.p[i * v.row + t * v.col];
    v = {copy, kStep, 1};
  }
  __m512i x[16];
  const bool along = v.col == 1, whole = rows == 16 && depth == kStep;
  if (along && whole) {  // x[i]: row i
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(v.p + i * v.row);
  } else if (along) {
    const __mmask32 some = depth == kStep ? ~__mmask32(0) : (__mmask32(1) << depth) - 1;
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      x[i] = _mm512_maskz_loadu_epi16(i < rows ? some : 0, v.p + (i < rows ? i * v.row : 0));
  } else {  // x[t]: elements 2 t and 2 t + 1 of every row
    const __mmask16 some = __mmask16((1u << rows) - 1);
    const auto line = [&](int64_t t) {
      if (whole) return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v.p + t * v.col)));
      const bool inside = t < depth;
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(inside ? some : 0, v.p + (inside ? t * v.col : 0)));
    };
#pragma GCC unroll 16
    for (int64_t t = 0; t < 16; ++t) x[t] = _mm512_or_si512(line(2 * t), _mm512_slli_epi32(line(2 * t + 1), 16));
  }
  if (along == Pairs) transpose(x);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * kStep, x[i]);
}
// One step of two tiles.
template <bool Pairs> void pack_step(MatView<bf16> v, int64_t rows, int64_t depth, bf16* to) {
  depth = std::min(depth, kStep);
  for (int64_t i = 0; i < kSide; i += 16) {
    const int64_t some = std::clamp<int64_t>(rows - i, 0, 16);
    pack_tile<Pairs>(some > 0 ? v.at(i, 0) : v, some, depth, to + i * kStep);
  }
}

// AMX by inline assembly: g++ 12's _tile_loadconfig and _tile_loadd do not say what memory they read. Compilers use no
// tiles on their own, so tiles need not be named as changed.
template <int Tile> void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile> void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile> void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(Tile)); }
template <int C, int A, int B> void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// The shapes of the tiles, for the calling thread and as long as this lives: 16 rows of 64 bytes each. A thread that
// holds none pays for none when it is interrupted.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// A block of C, rows ld apart, = or += packed A and B of some steps. The lower 16 rows only if Halves is 2.
template <int Halves> void amx_block(int64_t steps, const bf16* a, const bf16* b, float* c, int64_t ld, bool add) {
  const int64_t bytes = ld * int64_t(sizeof(float));
  if (add) {
    load_tile<0>(c, bytes), load_tile<1>(c + 16, bytes);
    if (Halves == 2) load_tile<2>(c + 16 * ld, bytes), load_tile<3>(c + 16 * ld + 16, bytes);
  } else {
    zero_tile<0>(), zero_tile<1>();
    if (Halves == 2) zero_tile<2>(), zero_tile<3>();
  }
  for (; steps > 0; --steps, a += kStepSize, b += kStepSize) {
    load_tile<6>(b, 64), load_tile<4>(a, 64);
    add_product<0, 4, 6>();
    load_tile<7>(b + kTile, 64);
    add_product<1, 4, 7>();
    if (Halves == 2) {
      load_tile<5>(a + kTile, 64);
      add_product<2, 5, 6>(), add_product<3, 5, 7>();
    }
  }
  store_tile<0>(c, bytes), store_tile<1>(c + 16, bytes);
  if (Halves == 2) store_tile<2>(c + 16 * ld, bytes), store_tile<3>(c + 16 * ld + 16, bytes);
}

// Eight rows of a block, from `row` on, by vdpbf16ps.
inline void avx512_rows(int64_t steps, const bf16* a, const bf16* b, float* c, int64_t ld, bool add) {
  constexpr int kRows = 8;
  __m512 sum[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) sum[r][w] = add ? _mm512_loadu_ps(c + r * ld + w * 16) : _mm512_setzero_ps();
  for (; steps > 0; --steps, a += kStepSize, b += kStepSize)
#pragma GCC unroll 2
    for (int t = 0; t < 16; ++t) {
      const __m512i left = _mm512_load_si512(b + t * kStep), right = _mm512_load_si512(b + kTile + t * kStep);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int pair;
        std::memcpy(&pair, a + r * kStep + 2 * t, sizeof pair);
        const __m512i x = _mm512_set1_epi32(pair);
        asm("vdpbf16ps %2, %1, %0" : "+v"(sum[r][0]) : "v"(x), "v"(left));
        asm("vdpbf16ps %2, %1, %0" : "+v"(sum[r][1]) : "v"(x), "v"(right));
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) _mm512_storeu_ps(c + r * ld + w * 16, sum[r][w]);
}
// As amx_block, for `rows` of its rows (others may be computed as well).
inline void avx512_block(int64_t steps, int64_t rows, const bf16* a, const bf16* b, float* c, int64_t ld, bool add) {
  for (int64_t r = 0; r < rows; r += 8) avx512_rows(steps, a + r / 16 * kTile + r % 16 * kStep, b, c + r * ld, ld, add);
}
}  // namespace tg::cpu::TG_ISA_NS::micro_bf16
