// Kernels of ops/quantized/block_linear.h.
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/quantized/block_linear.h>

#include <atomic>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
using tg::detail::BlockFormats, tg::detail::visit_block_format;
// Elements [first, first + n) of a row of blocks, whole blocks.
template <class T> void dequantize_blocks(BlockFormat format, const uint8_t* codes, int64_t first, int64_t n, T* to) {
  visit_block_format(format, [&]<BlockFormat F>() {
    constexpr tg::detail::BlockLayout layout = tg::detail::layout_of_block(F);
    const uint8_t* block = codes + first / layout.elements * layout.bytes;
    for (int64_t i = 0; i < n; i += layout.elements, block += layout.bytes) {
      alignas(64) float values[layout.elements];
      tg::detail::dequantize_block<F>(block, values);
      for (int j = 0; j < layout.elements; ++j) to[i + j] = T(values[j]);
    }
  });
}
struct Parts {
  const BlockFormats& formats;
  Bufs codes;
  const uint8_t* row(size_t part, int64_t r) const { return codes[part].data<uint8_t>() + r * codes[part].size(1); }
  int64_t rows() const {
    int64_t n = 0;
    for (const Buf& b : codes) n += b.size(0);
    return n;
  }
  // Elements [first, first + n) of row r, in whole blocks.
  template <class T> void dequantize(int64_t r, int64_t first, int64_t n, T* to) const {
    size_t part = 0;
    for (; r >= codes[part].size(0); ++part) r -= codes[part].size(0);
    dequantize_blocks(formats[part], row(part, r), first, n, to);
  }
};

void dequantize(const op::DequantizeBlocks& op, Bufs in, Bufs out, Context&) {
  const int64_t rows = out[0].size(0), n = out[0].size(1);
  const Parts parts{op.formats, in};
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    for_row_tiles(rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) parts.dequantize(r, 0, n, out[0].data<T>() + r * n);
    });
  });
}
void block_rows(const op::BlockRows& op, Bufs in, Bufs out, Context&) {
  const int64_t n = out[0].shape().back();
  const Parts parts{op.formats, in.subspan(1)};
  const int64_t size = parts.rows();
  const std::vector<int64_t> ids = flat_indices(in[0]);
  for (size_t i = 0; i < ids.size(); ++i)
    if (uint64_t(ids[i]) >= uint64_t(size))
      throw tg::kernel::index_outside(op.kName, ids[i], tg::detail::position_of(int64_t(i), in[0].shape()),
                                      *in[0].layout, 0, size);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    for_row_tiles(int64_t(ids.size()), n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) parts.dequantize(ids[size_t(i)], 0, n, out[0].data<T>() + i * n);
    });
  });
}
TG_KERNEL(op::DequantizeBlocks, cpu, dequantize);
TG_KERNEL(op::BlockRows, cpu, block_rows);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
