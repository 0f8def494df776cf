// Source of a chain of pointwise ops as one kernel, from the text of their functions.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/op.h>

#include <string>
#include <vector>

namespace tg::cuda {

// Every element, one row, one column, or one element for all.
enum class Reads : uint8_t { all, row, column, one };
Reads reads_of(const ChainPlan&, const ChainPlan::Buffer&);

struct ChainSource {
  std::string text;
  int vector = 1;
  std::vector<uint32_t> buffers;  // argument order
  struct Number {                 // number `index` of the expression of `op`
    uint32_t op, index;
    DType dtype;
    bool bitwise;
  };
  std::vector<Number> numbers;
};
inline constexpr const char* kChainKernel = "tg_chain";
inline constexpr unsigned kChainThreads = 128;

ChainSource chain_source(const ChainPlan&, std::span<const Op* const> ops);
// Number's bits in its dtype or compute type.
uint64_t number_bits(const ChainSource::Number&, double);

}  // namespace tg::cuda
