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

/// n elements on each rank, and the place of their sum over ranks. Sums of f64, i64 and f32 have that dtype, those of
/// bf16 f32.
struct ReduceBuffer {
  const void* from;
  void* to;
  int64_t n;
  DType dtype;
};
/// All-reduce: elementwise sums in rank order, ((x0 + x1) + x2) + ... Lists have equal sizes and dtypes on every rank.
/// Each rank reduces a shard, then all gather the shards.
void all_reduce(Communicator&, std::span<const ReduceBuffer>);

/// The shards of several concatenated tensors: rank r owns elements [offsets[r], offsets[r + 1]). The ranks + 1 offsets
/// increase from 0 to the total number of elements.
using ShardOffsets = std::vector<int64_t>;
/// Elements [first, first + n) of one tensor.
struct Shard {
  int64_t first = 0, n = 0;
};
namespace detail {
/// The dtype of a sum over ranks. An Error unless f64, f32, bf16 or i64.
DType reduced_dtype(std::string_view op, DType);
/// Bytes that a rank reduces in one round: 1 MiB, which fits caches, and at most 64 MiB over all ranks.
constexpr int64_t bytes_of_round(int64_t ranks) { return std::min<int64_t>(1 << 20, (64 << 20) / ranks); }
/// The shard of a rank within the tensor of elements [begin, begin + n) of the concatenation.
Shard shard_of(const ShardOffsets&, int rank, int64_t begin, int64_t n);
}  // namespace detail

/// The sums of all_reduce() for this rank's shards only: `to` gets shard_of() of each tensor.
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
