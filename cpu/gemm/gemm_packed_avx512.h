// bf16 pairs (gemm_bf16.cpp, gemm_parts.cpp), int8 quads (gemm_int8.cpp), 32 bits each. A's step: two tiles of 16 rows
// of 64 contiguous bytes of k. B's step: two tiles of 16 columns; each of 16 rows has 32 bits of k of every column.
#pragma once
#include <tapegrad/cpu/gemm/gemm_packed.h>
#include <tapegrad/cpu/simd/transpose.h>

namespace tg::cpu::TG_ISA_NS::packed {
inline constexpr int kTile = 16 * int(kRow);  // bytes

// 32 bits of k, from t on, of each of 16 rows of v, whose columns are contiguous; 0 outside `some` rows and `depth`.
inline __m512i lines(MatView<bf16> v, int64_t t, __mmask16 some, int64_t depth) {
  const auto line = [&](int64_t at) {
    const bool inside = at < depth;
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(inside ? some : 0, v.p + (inside ? at * v.col : 0)));
  };
  return _mm512_or_si512(line(t), _mm512_slli_epi32(line(t + 1), 16));
}
inline __m512i lines(MatView<int8_t> v, int64_t t, __mmask16 some, int64_t depth) {
  const auto line = [&](int64_t at) {
    const bool inside = at < depth;
    return _mm_maskz_loadu_epi8(inside ? some : 0, v.p + (inside ? at * v.col : 0));
  };
  const __m512i x = _mm512_inserti32x4(
      _mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(line(t)), line(t + 1), 1), line(t + 2), 2),
      line(t + 3), 3);
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, x), bytes);
}

// A tile of v, rows of A or columns of B: row i at t of k, 0 beyond `rows` and `depth`, XORed with Flip.
template <bool OfB, int Flip, class T> void pack_tile(MatView<T> v, int64_t rows, int64_t depth, std::byte* to) {
  constexpr int64_t kLine = kRow / int64_t(sizeof(T)), kEach = 4 / int64_t(sizeof(T));
  if (v.col != 1 && v.row != 1) {
    alignas(64) T copy[16 * kLine];
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t t = 0; t < depth; ++t) copy[i * kLine + t] = v.p[i * v.row + t * v.col];
    return pack_tile<OfB, Flip, T>({copy, kLine, 1}, rows, depth, to);
  }
  __m512i x[16];
  const bool along = v.col == 1, whole = rows == 16 && depth == kLine;
  if (along && whole) {  // x[i]: row i
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(v.p + i * v.row);
  } else if (along) {
    const __mmask64 some = ~__mmask64(0) >> (kRow - depth * int64_t(sizeof(T)));
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      x[i] = _mm512_maskz_loadu_epi8(i < rows ? some : 0, v.p + (i < rows ? i * v.row : 0));
  } else if (whole) {  // x[t]: 32 bits of every row
#pragma GCC unroll 16
    for (int64_t t = 0; t < 16; ++t) x[t] = lines(v, t * kEach, __mmask16(0xffff), kLine);
  } else {
    const __mmask16 some = __mmask16((1u << rows) - 1);
    for (int64_t t = 0; t < 16; ++t) x[t] = lines(v, t * kEach, some, depth);
  }
  if (along == OfB) transpose_words<uint32_t>(x);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i)
    _mm512_store_si512(to + i * kRow, Flip ? _mm512_xor_si512(x[i], _mm512_set1_epi8(char(Flip))) : x[i]);
}
template <bool OfB, int Flip, class T>
void pack_step(MatView<T> v, int64_t rows, int64_t depth, std::byte* to, int64_t /*part*/) {
  for (int64_t i = 0; i < kSide; i += 16) {
    const int64_t some = std::clamp<int64_t>(rows - i, 0, 16);
    pack_tile<OfB, Flip>(some > 0 ? v.at(i, 0) : v, some, depth, to + i * kRow);
  }
}

// Inline assembly: g++ 12's _tile_loadconfig and _tile_loadd do not declare the memory they read. Compilers never use
// tiles, so no clobber names them.
template <int Tile, int Offset = 0> void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd %c3(%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile), "i"(Offset) : "memory");
}
template <int Tile, int Offset = 0> void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, %c3(%0,%1,1)" ::"r"(p), "r"(stride), "i"(Tile), "i"(Offset) : "memory");
}
template <int Tile> void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(Tile)); }
// 16 rows of 64 bytes. After leave_tiles() context switches save no tile state.
inline void enter_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  asm volatile("ldtilecfg (%0)" ::"r"(&shapes), "m"(shapes));
}
inline void leave_tiles() { asm volatile("tilerelease"); }

// Dot::add<C, A, B>() adds a GEMM of tiles. Halves 1: upper 16 rows.
template <class Dot, int Halves, class Sum>
void amx_halves(int64_t steps, const std::byte* a, const std::byte* b, Sum* c, int64_t ld, bool add) {
  const int64_t bytes = ld * int64_t(sizeof(Sum));
  if (add) {
    load_tile<0>(c, bytes), load_tile<1, kRow>(c, bytes);
    if (Halves == 2) load_tile<2>(c + 16 * ld, bytes), load_tile<3, kRow>(c + 16 * ld, bytes);
  } else {
    zero_tile<0>(), zero_tile<1>();
    if (Halves == 2) zero_tile<2>(), zero_tile<3>();
  }
  for (; steps > 0; --steps, a += kStep, b += kStep) {
    load_tile<6>(b, kRow), load_tile<4>(a, kRow);
    Dot::template add<0, 4, 6>();
    load_tile<7, kTile>(b, kRow);
    Dot::template add<1, 4, 7>();
    if (Halves == 2) {
      load_tile<5, kTile>(a, kRow);
      Dot::template add<2, 5, 6>(), Dot::template add<3, 5, 7>();
    }
  }
  store_tile<0>(c, bytes), store_tile<1, kRow>(c, bytes);
  if (Halves == 2) store_tile<2>(c + 16 * ld, bytes), store_tile<3, kRow>(c + 16 * ld, bytes);
}
template <class Dot, class Sum>
void amx_block(int64_t steps, int64_t rows, const std::byte* a, const std::byte* b, Sum* c, int64_t ld, bool add,
               const Sum* /*starts*/) {
  (rows > 16 ? amx_halves<Dot, 2, Sum> : amx_halves<Dot, 1, Sum>)(steps, a, b, c, ld, add);
}

struct Avx512Bf16 {
  using Vector = __m512i;
  static void add(__m512i& sum, __m512i a, __m512i b) { asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
};
struct AmxBf16 {
  template <int C, int A, int B> static void add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

template <class Dot, class Sum>
void avx512_block(int64_t steps, int64_t rows, const std::byte* a, const std::byte* b, Sum* c, int64_t ld, bool add,
                  const Sum* starts) {
  for (int64_t r = 0; r < rows; r += 8)
    dot_rows<Dot, 8, kTile>(steps, a + r * kRow, b, c + r * ld, ld, add, starts ? starts + r : nullptr);
}
}  // namespace tg::cpu::TG_ISA_NS::packed
