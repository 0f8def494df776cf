// Instructions by Intel's manual (volume 2). tdpbf16ps in the order of sums that hardware has: the even and the odd
// elements of k apart, each from 0 by fused multiply-adds, then both to C; denormals are 0.
#include "support/amx.h"

#include <tapegrad/cpu/runtime/product_path.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace tg {
namespace {
struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
struct Tile {
  alignas(64) uint32_t at[16][16];
};
thread_local Config config;
thread_local Tile tiles[8];

// A memory operand with a base register: address without the index, scaled index, and length from the ModRM byte.
struct Operand {
  uint64_t base, index = 0, length = 1;
};
Operand operand(const uint8_t* modrm, bool index_high, bool base_high, const gregset_t& r) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  const auto value = [&](int reg, bool high) { return uint64_t(r[kOrder[(reg & 7) + 8 * high]]); };
  const int mode = modrm[0] >> 6;
  Operand o{value(modrm[0], base_high)};
  if ((modrm[0] & 7) == 4) {  // a SIB byte
    const int sib = modrm[o.length++];
    o.base = value(sib, base_high);
    if ((sib >> 3 & 7) != 4 || index_high) o.index = value(sib >> 3, index_high) << (sib >> 6);
  }
  int32_t offset = mode == 1 ? int8_t(modrm[o.length]) : 0;
  if (mode == 2) std::memcpy(&offset, modrm + o.length, 4);
  o.length += mode == 1 ? 1 : mode == 2 ? 4 : 0;
  o.base += uint64_t(int64_t(offset));
  return o;
}

[[gnu::target("avx2,fma")]] void add_bf16(Tile& c, const Tile& a, const Tile& b, int rows, int steps, int columns) {
  const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
  // Round to nearest, denormals 0, no exception. Linux restores the register after the handler.
  _mm_setcsr(0x9fc0);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; j += 8) {
      __m256 even = _mm256_setzero_ps(), odd = even;
      for (int t = 0; t < steps; ++t) {
        const __m256i x = _mm256_set1_epi32(int(a.at[i][t]));
        const __m256i y = _mm256_load_si256(reinterpret_cast<const __m256i*>(b.at[t] + j));
        even = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                               _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), even);
        odd = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)),
                              _mm256_castsi256_ps(_mm256_and_si256(y, high)), odd);
      }
      float* const sum = reinterpret_cast<float*>(c.at[i] + j);
      _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), _mm256_add_ps(even, odd)));
    }
}
[[gnu::target("avx2")]] void add_int8(Tile& c, const Tile& a, const Tile& b, int rows, int steps, int columns) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; j += 8) {
      __m256i* const sum = reinterpret_cast<__m256i*>(c.at[i] + j);
      for (int t = 0; t < steps; ++t) {
        const __m256i x = _mm256_set1_epi32(int(a.at[i][t]));
        const __m256i y = _mm256_load_si256(reinterpret_cast<const __m256i*>(b.at[t] + j));
        const __m256i even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8),
                                               _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srai_epi16(x, 8), _mm256_srai_epi16(y, 8));
        _mm256_store_si256(sum, _mm256_add_epi32(_mm256_load_si256(sum), _mm256_add_epi32(even, odd)));
      }
    }
}

// Runs the instruction at `p`; its length, or 0 for another one.
uint64_t run(const uint8_t* p, const gregset_t& r) {
  if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || (p[2] & 0x84) != 0) return 0;
  const int prefix = p[2] & 3, kind = p[3] << 4 | prefix, source = ~p[2] >> 3 & 7, reg = p[4] >> 3 & 7, rm = p[4] & 7;
  constexpr int kNone = 0, kF3 = 2, kF2 = 3;
  if (p[4] >> 6 == 3) {  // registers
    const int columns = config.bytes[reg] / 4;
    switch (kind) {
      case 0x490 | kNone: config = {}, std::memset(tiles, 0, sizeof tiles); break;
      case 0x490 | kF2: tiles[reg] = {}; break;
      case 0x5c0 | kF3:
        add_bf16(tiles[reg], tiles[rm], tiles[source], config.rows[reg], config.bytes[rm] / 4, columns);
        break;
      case 0x5e0 | kF2:
        add_int8(tiles[reg], tiles[rm], tiles[source], config.rows[reg], config.bytes[rm] / 4, columns);
        break;
      default: return 0;
    }
    return 5;
  }
  const Operand o = operand(p + 4, (p[1] & 0x40) == 0, (p[1] & 0x20) == 0, r);
  if (kind == (0x490 | kNone)) {
    std::memcpy(&config, reinterpret_cast<const void*>(o.base), sizeof config);
    std::memset(tiles, 0, sizeof tiles);
  } else if (kind == (0x4b0 | kF2)) {
    tiles[reg] = {};
    for (uint64_t i = 0; i < config.rows[reg]; ++i)
      std::memcpy(tiles[reg].at[i], reinterpret_cast<const void*>(o.base + i * o.index), config.bytes[reg]);
  } else if (kind == (0x4b0 | kF3)) {
    for (uint64_t i = 0; i < config.rows[reg]; ++i)
      std::memcpy(reinterpret_cast<void*>(o.base + i * o.index), tiles[reg].at[i], config.bytes[reg]);
  } else {
    return 0;
  }
  return 4 + o.length;
}

struct sigaction other;
void trap(int, siginfo_t*, void* context) {
  gregset_t& r = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto step = [&] { return run(reinterpret_cast<const uint8_t*>(r[REG_RIP]), r); };
  uint64_t length = step();
  if (length == 0) sigaction(SIGILL, &other, nullptr);  // it traps again
  for (; length != 0; length = step()) r[REG_RIP] += int64_t(length);
}
const bool lacks_amx = [] {
  unsigned r[4] = {};
  return !__get_cpuid_count(7, 0, &r[0], &r[1], &r[2], &r[3]) || (r[3] >> 24 & 1) == 0;
}();
const bool on = cpu::emulates_amx = lacks_amx;
}  // namespace

EmulatedAmx::EmulatedAmx() {
  struct sigaction action = {};
  action.sa_sigaction = trap, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGILL, &action, &other);
  running_ = lacks_amx;
}
EmulatedAmx::~EmulatedAmx() {
  sigaction(SIGILL, &other, nullptr);
  running_ = false;
}
}  // namespace tg
#else
tg::EmulatedAmx::EmulatedAmx() = default;
tg::EmulatedAmx::~EmulatedAmx() = default;
#endif
