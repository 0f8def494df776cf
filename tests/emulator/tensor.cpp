#include <bit>
#include <cstring>

#include <tapegrad/emulator/internal.h>

namespace simt::engine {
namespace {

struct Load {
  std::uint32_t* r;
  const unsigned char* row;  // row lane%8 of matrix lane/8
  int matrices;
  bool transposed;
};

void load_combine(void* const* frames, unsigned lanes) {
  const auto load = [&](unsigned l) -> Load& { return *static_cast<Load*>(frames[l]); };
  for (unsigned l = 0; l < 32; ++l)
    if (!(lanes >> l & 1)) absent_lane(0, l);
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned m = 0; m < unsigned(load(l).matrices); ++m) {
      std::uint16_t pair[2];
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned row = load(l).transposed ? l % 4 * 2 + i : l / 4;
        const unsigned column = load(l).transposed ? l / 4 : l % 4 * 2 + i;
        std::memcpy(&pair[i], load(m * 8 + row).row + column * 2, 2);
      }
      std::memcpy(&load(l).r[m], pair, 4);
    }
}

template <class D> struct Mma {
  D* d;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

// int8, or bf16 as the upper half of a float.
template <class E> auto element(std::uint32_t word, unsigned i) {
  if constexpr (sizeof(E) == 1)
    return static_cast<E>(word >> 8 * i);
  else
    return std::bit_cast<float>(i == 0 ? word << 16 : word & 0xffff0000U);
}

template <class E, class D, class Sum> void mma_combine(void* const* frames, unsigned lanes) {
  constexpr unsigned per = 4 / sizeof(E), half = per * 4;  // k per register, and per 4 lanes
  Sum a[16][2 * half], b[2 * half][8];
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) absent_lane(0, l);
    const auto& f = *static_cast<const Mma<D>*>(frames[l]);
    const unsigned g = l / 4, k = l % 4 * per;
    for (unsigned i = 0; i < per; ++i)
      for (unsigned h = 0; h < 2; ++h) {
        a[g][h * half + k + i] = static_cast<Sum>(element<E>(f.a[2 * h], i));
        a[g + 8][h * half + k + i] = static_cast<Sum>(element<E>(f.a[2 * h + 1], i));
        b[h * half + k + i][g] = static_cast<Sum>(element<E>(f.b[h], i));
      }
  }
  for (unsigned l = 0; l < 32; ++l) {
    D* d = static_cast<Mma<D>*>(frames[l])->d;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
      Sum s = static_cast<Sum>(d[i]);
      for (unsigned k = 0; k < 2 * half; ++k) s += a[row][k] * b[k][column];
      d[i] = static_cast<D>(s);
    }
  }
}

}  // namespace

void ldmatrix(std::uint32_t* r, const void* row, int matrices, bool transposed, Site at) {
  const void* pc = __builtin_return_address(0);
  if (lane() < unsigned(matrices) * 8) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16) fail(Fault::misaligned, at, "ldmatrix row at %p", row);
    touch(row, 16, Access::read, pc);
  }
  Load f{r, static_cast<const unsigned char*>(row), matrices, transposed};
  collective(~0U, &f, load_combine, at);
}

void mma_bf16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site at) {
  Mma<float> f{d, a, {b0, b1}};
  collective(~0U, &f, mma_combine<__nv_bfloat16, float, double>, at);
}

void mma_s8(int* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Site at) {
  Mma<int> f{d, a, {b0, b1}};
  collective(~0U, &f, mma_combine<std::int8_t, int, std::int32_t>, at);
}

}  // namespace simt::engine
