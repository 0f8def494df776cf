/// @file
/// Block formats of frozen weights, and their layouts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tg {

/// d, m: f16; q: unsigned; all little endian. nf4 (Dettmers et al., QLoRA, 2023, arXiv:2305.14314) has its absmax
/// first, others are ggml's types.
enum class BlockFormat : uint8_t {
  q4_0,  ///< 32: d (q - 8)
  q4_1,  ///< 32: d q + m
  q5_0,  ///< 32: d (q - 16)
  q5_1,  ///< 32: d q + m
  q8_0,  ///< 32: d q, signed
  q4_k,  ///< 256: d s q - m t, 6-bit s and t per 32
  q5_k,  ///< 256: as q4_k
  q6_k,  ///< 256: d s (q - 32), signed s per 16
  nf4,   ///< 64: absmax times a normal quantile
};

namespace detail {

// A block's elements and bytes, with `halves` numbers in f16 from byte `half` on. `number`: the type's in GGUF files.
struct BlockLayout {
  std::string_view name;
  int elements, bytes;
  uint32_t number;
  int half, halves;
};
inline constexpr BlockLayout kBlockLayouts[] = {
    {"q4_0", 32, 18, 2, 0, 1},    {"q4_1", 32, 20, 3, 0, 2},      {"q5_0", 32, 22, 6, 0, 1},
    {"q5_1", 32, 24, 7, 0, 2},    {"q8_0", 32, 34, 8, 0, 1},      {"q4_K", 256, 144, 12, 0, 2},
    {"q5_K", 256, 176, 13, 0, 2}, {"q6_K", 256, 210, 14, 208, 1}, {"nf4", 64, 36, 0, 0, 0}};
constexpr const BlockLayout& layout_of_block(BlockFormat f) { return kBlockLayouts[size_t(f)]; }

}  // namespace detail
}  // namespace tg
