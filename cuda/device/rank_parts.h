// Packs tensors into one row of memory; sums data of several ranks.
#pragma once
#include <tapegrad/core/op.h>

#include <vector>

namespace tg::cuda {

struct Segment {
  const void* from;
  void* to;
  int64_t n;
};
void copy_segments(const Context&, const std::vector<Segment>&, size_t element);
void round_segments(const Context&, const std::vector<Segment>&);

// sums[i] = ((x0[i] + x1[i]) + x2[i]) + ...; xr begins at parts[r * stride], 16-byte aligned. f64, f32, i64, or bf16
// with f32 sums.
void add_parts(const Context&, DType, int64_t n, int ranks, int64_t stride, const void* parts, void* sums);

}  // namespace tg::cuda
