/// @file
/// Sums over the ranks of a Communicator, on the host, and who owns which part of them. They are made in the order of
/// the ranks, so their bits depend on no library and no message size. The ops of ops/training/collective.h use them.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/dtype.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tg {

/// n elements that all ranks have, and where their sum goes. f64, i64 and f32 give their own dtype, bf16 gives f32.
struct RankSum {
  const void* from;
  void* to;
  int64_t n;
  DType dtype;
};
/// The dtype of a sum over ranks. An Error for others than f64, f32, bf16 and i64.
DType rank_sum_dtype(std::string_view op, DType);
/// Sums over so many ranks go in rounds, in each of which a rank adds up elements of at most so many bytes: 1 MiB, and
/// 64 MiB of all ranks. That is in caches, long enough for any network, and no more memory with many ranks. A message
/// is at most as long; where the sum is wider, those of the sums are longer.
constexpr int64_t rank_part_bytes(int64_t ranks) { return std::min<int64_t>(1 << 20, (64 << 20) / ranks); }
/// The sums of all ranks, element by element, in the order of the ranks: ((x0 + x1) + x2) + ... On every rank the lists
/// have the same sizes and dtypes. Each rank adds up a part of the elements, which the others then get.
void sum_over_ranks(Communicator&, std::span<const RankSum>);

/// Who owns what of several tensors, which are taken as one long row in their order: rank r owns elements [cuts[r],
/// cuts[r + 1]) of it. There are as many cuts as ranks and one; they rise from 0 to the length of the row.
using RankCuts = std::vector<int64_t>;
/// Elements [first, first + n) of a tensor of a row.
struct OwnedPart {
  int64_t first = 0, n = 0;
};
/// What a rank owns of the tensor whose elements are [begin, begin + n) of the row.
OwnedPart owned_part(const RankCuts&, int rank, int64_t begin, int64_t n);
/// The sums as of sum_over_ranks(), of what this rank owns alone: `to` gets its owned_part() of each tensor.
void sum_to_owners(Communicator&, std::span<const RankSum>, const RankCuts&);
/// n elements of any dtype. Their owners have the values that all others are to have.
struct RankTensor {
  void* data;
  int64_t n;
  size_t size;  ///< bytes of an element
};
/// All ranks get what its owner has of each tensor, in place.
void gather_from_owners(Communicator&, std::span<const RankTensor>, const RankCuts&);

}  // namespace tg
