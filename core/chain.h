// Pointwise ops that run together, so that what one leaves for the next needs no memory of its own: on the CPU tile by
// tile, each op by its own kernel, on a GPU as one kernel. Results are those of running op after op, bit for bit.
// The planner (plan.h) finds chains, a backend runs them (BackendRuntime::run_chain).
#pragma once
#include <tapegrad/core/layout.h>
#include <tapegrad/core/util/small_vec.h>

#include <span>
#include <vector>

namespace tg {

struct Op;

// What all ops of a chain see: (rows, columns), where a result has no gaps and an input may repeat along either.
struct ChainPlan {
  struct Buffer {
    DType dtype;
    int64_t row_step, column_step;  // elements
    // Where it comes from: input `index` of node `node`; output of node `node`; or nothing: it lives within the chain,
    // in scratch memory number `index`.
    enum class Kind : uint8_t { input, output, temporary } kind;
    uint32_t node, index;  // node: place in the chain
  };
  struct Use {
    SmallVec<uint32_t, 3> in;  // buffers
    uint32_t out;
  };
  int64_t rows = 0, columns = 0;
  std::vector<Buffer> buffers;
  std::vector<Use> uses;  // one per node
  uint32_t scratch = 0;   // how many a tile needs
};
struct Chain {
  const ChainPlan& plan;
  std::span<const Op* const> ops;    // one per use
  std::span<std::byte* const> data;  // first element of each buffer; null: temporary
  Device device;                     // of all of them
};

}  // namespace tg
