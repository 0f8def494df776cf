/// @file
/// All-reduce, reduce-scatter and all-gather over the ranks of a Communicator, on the host. Sums go in rank order, so
/// their bits depend on no library or message size.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/dtype.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tg {

/// n elements per rank, and their sum's place. Sums have the operands' dtype, f32 for bf16.
struct ReduceBuffer {
  const void* from;
  void* to;
  int64_t n;
  DType dtype;
};
/// All-reduce: elementwise sums in rank order, ((x0 + x1) + x2) + ... Lists have equal sizes and dtypes on every rank.
void all_reduce(Communicator&, std::span<const ReduceBuffer>);

/// Shards of concatenated tensors: rank r owns elements [offsets[r], offsets[r + 1]). ranks + 1 offsets increase from 0
/// to the total.
using ShardOffsets = std::vector<int64_t>;
/// Elements [first, first + n) of one tensor.
struct Shard {
  int64_t first = 0, n = 0;
};
namespace detail {
/// Dtype of a sum over ranks. An Error unless f64, f32, bf16 or i64.
DType reduced_dtype(std::string_view op, DType);
/// Bytes that a rank reduces in one round: 1 MiB, which fits caches, and at most 64 MiB over all ranks.
constexpr int64_t bytes_of_round(int64_t ranks) { return std::min<int64_t>(1 << 20, (64 << 20) / ranks); }
/// A rank's shard of the concatenation's elements [begin, begin + n).
Shard shard_of(const ShardOffsets&, int rank, int64_t begin, int64_t n);
}  // namespace detail

/// Sums of all_reduce() for this rank's shards only: `to` gets shard_of() of each tensor.
void reduce_scatter(Communicator&, std::span<const ReduceBuffer>, const ShardOffsets&);
/// n elements of any dtype; each owner has its shard.
struct ShardedTensor {
  void* data;
  int64_t n;
  size_t size;  ///< bytes per element
};
/// All-gather in place: each rank gets the shards of all others.
void all_gather(Communicator&, std::span<const ShardedTensor>, const ShardOffsets&);

}  // namespace tg
