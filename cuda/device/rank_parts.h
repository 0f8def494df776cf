// Pieces of tensors that become one row in memory, or come from there, and the sum of what several ranks sent. For
// collective.cu.
#pragma once
#include <tapegrad/core/op.h>

#include <vector>

namespace tg::cuda {

// n elements that are copied.
struct Piece {
  const void* from;
  void* to;
  int64_t n;
};
// Elements of 2, 4 or 8 bytes, all in few launches.
void copy_pieces(const Context&, const std::vector<Piece>&, size_t element);
// From f32 to bf16.
void round_pieces(const Context&, const std::vector<Piece>&);

// sums[i] = ((x0[i] + x1[i]) + x2[i]) + ... for i in [0, n). The elements of rank r begin at parts[r * stride]. f64,
// f32, i64, or bf16, whose sums are in f32. Parts and sums begin at multiples of 16 bytes.
void add_parts(const Context&, DType, int64_t n, int ranks, int64_t stride, const void* parts, void* sums);

}  // namespace tg::cuda
