// Dequantized elements of a row of blocks.
#pragma once
#include <tapegrad/cpu/simd/isa.h>
#include <tapegrad/ops/quantized/block_format.h>

namespace tg::cpu::TG_ISA_NS {

// Elements [first, first + n) of a row, whole blocks.
template <class T> void dequantize_blocks(BlockFormat format, const uint8_t* codes, int64_t first, int64_t n, T* to) {
  tg::detail::visit_block_format(format, [&]<BlockFormat F>() {
    constexpr tg::detail::BlockLayout layout = tg::detail::layout_of_block(F);
    const uint8_t* block = codes + first / layout.elements * layout.bytes;
    for (int64_t i = 0; i < n; i += layout.elements, block += layout.bytes) {
      alignas(64) float values[layout.elements];
      tg::detail::dequantize_block<F>(block, values);
      for (int j = 0; j < layout.elements; ++j) to[i + j] = T(values[j]);
    }
  });
}

}  // namespace tg::cpu::TG_ISA_NS
