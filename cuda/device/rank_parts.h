// Packing of tensors into one row of memory and back; sums of data of several ranks.
#pragma once
#include <tapegrad/core/op.h>

#include <vector>

namespace tg::cuda {

struct Piece {
  const void* from;
  void* to;
  int64_t n;
};
// Elements of 2, 4 or 8 bytes, in few launches.
void copy_pieces(const Context&, const std::vector<Piece>&, size_t element);
// Rounds f32 to bf16.
void round_pieces(const Context&, const std::vector<Piece>&);

// sums[i] = ((x0[i] + x1[i]) + x2[i]) + ...; rank r's elements begin at parts[r * stride]. f64, f32, i64, or bf16 with
// f32 sums. Every rank's part and sums are 16-byte aligned.
void add_parts(const Context&, DType, int64_t n, int ranks, int64_t stride, const void* parts, void* sums);

}  // namespace tg::cuda
