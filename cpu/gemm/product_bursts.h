// Bursts of independent instructions for x86-64, to measure what a processor makes of them (cpu/gemm/product_path.h).
#pragma once
#include <tapegrad/cpu/gemm/product_path.h>

// One instruction on twelve registers, from the second on.
#define TG_TWELVE(instruction)                                                                                      \
  instruction "2\n\t" instruction "3\n\t" instruction "4\n\t" instruction "5\n\t" instruction "6\n\t" instruction   \
              "7\n\t" instruction "8\n\t" instruction "9\n\t" instruction "10\n\t" instruction "11\n\t" instruction \
              "12\n\t" instruction "13\n\t"
#define TG_CHANGED "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"
// The rate of `times` twelves, of which each instruction does `each` multiply-adds.
#define TG_RATE(times, each, instruction)                                                 \
  rate_of(double(times) * 12 * (each), [] {                                               \
    for (int i = 0; i < (times); ++i) asm volatile(TG_TWELVE(instruction)::: TG_CHANGED); \
    asm volatile("vzeroupper");                                                           \
  })
// The rate of one instruction on four tiles, which does `each` multiply-adds.
#define TG_TILE_RATE(each, instruction)                                                                        \
  [] {                                                                                                         \
    struct alignas(64) {                                                                                       \
      uint8_t palette = 1, start_row = 0, reserved[14] = {};                                                   \
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};                                                   \
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};                                                     \
    } const shapes;                                                                                            \
    asm volatile("ldtilecfg %0" ::"m"(shapes));                                                                \
    const double rate = rate_of(40.0 * 4 * (each), [] {                                                        \
      for (int i = 0; i < 40; ++i)                                                                             \
        asm volatile(instruction " %tmm6, %tmm4, %tmm0\n\t" instruction " %tmm6, %tmm4, %tmm1\n\t" instruction \
                                 " %tmm6, %tmm4, %tmm2\n\t" instruction " %tmm6, %tmm4, %tmm3");               \
    });                                                                                                        \
    asm volatile("tilerelease");                                                                               \
    return rate;                                                                                               \
  }()
