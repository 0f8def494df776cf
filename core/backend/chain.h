// A chain: pointwise ops that run together without memory for intermediate results, bitwise as separate ops. The CPU
// runs kernels tile by tile, a GPU one kernel. plan.h finds chains.
#pragma once
#include <tapegrad/core/layout.h>
#include <tapegrad/core/util/small_vec.h>

#include <span>
#include <vector>

namespace tg {

struct Op;

// Ops work on matrices (rows, columns). Outputs are contiguous; inputs may repeat along a dimension.
struct ChainPlan {
  struct Buffer {
    DType dtype;
    int64_t row_step, column_step;  // elements
    // input and output: `index` of `node`. temporary: scratch buffer `index`.
    enum class Kind : uint8_t { input, output, temporary } kind;
    uint32_t node, index;  // node: position in the chain
  };
  struct Use {
    SmallVec<uint32_t, 3> in;  // buffers
    uint32_t out;
  };
  int64_t rows = 0, columns = 0;
  std::vector<Buffer> buffers;
  std::vector<Use> uses;  // one per node
  uint32_t scratch = 0;   // buffers per tile
};
struct Chain {
  const ChainPlan& plan;
  std::span<const Op* const> ops;    // one per use
  std::span<std::byte* const> data;  // first element of each buffer; null: temporary
  Device device;                     // device of the buffers
};

}  // namespace tg
