/// @file
/// All-reduce, reduce-scatter and all-gather over the ranks of a Communicator, on the host. Ranks are added in their
/// order, so the bits depend on no library and no message size. The ops of ops/training/collective.h use them.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/dtype.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tg {

/// n elements that all ranks have, and where their sum goes. Sums of f64, i64 and f32 have that dtype, those of bf16
/// f32.
struct ReduceBuffer {
  const void* from;
  void* to;
  int64_t n;
  DType dtype;
};
/// The dtype of a sum over ranks. An Error for others than f64, f32, bf16 and i64.
DType reduced_dtype(std::string_view op, DType);
/// Bytes that a rank reduces in one round of an all-reduce: 1 MiB, and at most 64 MiB over all ranks. That fits caches,
/// is long enough for any network, and bounds memory with many ranks. It also bounds a message of operands.
constexpr int64_t bytes_of_round(int64_t ranks) { return std::min<int64_t>(1 << 20, (64 << 20) / ranks); }
/// The sums of all ranks, element by element, in the order of the ranks: ((x0 + x1) + x2) + ... On every rank the lists
/// have the same sizes and dtypes. Each rank reduces a shard of the elements, then all gather the shards.
void all_reduce(Communicator&, std::span<const ReduceBuffer>);

/// The shards of several tensors, concatenated in their order: rank r owns elements [offsets[r], offsets[r + 1]). There
/// is one more offset than ranks; they rise from 0 to the total number of elements.
using ShardOffsets = std::vector<int64_t>;
/// Elements [first, first + n) of one tensor.
struct Shard {
  int64_t first = 0, n = 0;
};
/// What a rank owns of the tensor whose elements are [begin, begin + n) of the concatenation.
Shard shard_of(const ShardOffsets&, int rank, int64_t begin, int64_t n);
/// The sums as of all_reduce(), of what this rank owns alone: `to` gets its shard_of() of each tensor.
void reduce_scatter(Communicator&, std::span<const ReduceBuffer>, const ShardOffsets&);
/// n elements of any dtype, of which each owner has its shard.
struct ShardedTensor {
  void* data;
  int64_t n;
  size_t size;  ///< bytes of an element
};
/// In place, each rank gets the shards of all others.
void all_gather(Communicator&, std::span<const ShardedTensor>, const ShardOffsets&);

}  // namespace tg
