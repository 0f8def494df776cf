// The source of a chain of pointwise ops as one kernel, in the text of the ops' own functions. Knows neither compiler
// nor device; chain.cpp compiles and launches it.
#pragma once
#include <tapegrad/core/chain.h>
#include <tapegrad/core/op.h>

#include <string>
#include <vector>

namespace tg::cuda {

// How a buffer is read: element by element, one row for all rows, one column for all columns, or one element for all.
enum class Reads : uint8_t { all, row, column, one };
Reads reads_of(const ChainPlan&, const ChainPlan::Buffer&);

struct ChainSource {
  std::string text;               // depends on dtypes, steps and expressions, and not on sizes or numbers
  int vector = 1;                 // neighbours that a thread takes at once, where alignment allows
  std::vector<uint32_t> buffers;  // those in memory, in the order of the kernel's arguments
  struct Number {                 // number `index` of the expression of `op`
    uint32_t op, index;
    DType dtype;
    bool bitwise;
  };
  std::vector<Number> numbers;
};
inline constexpr const char* kChainKernel = "tg_chain";
inline constexpr unsigned kChainThreads = 128;

// All ops have expressions.
ChainSource chain_source(const ChainPlan&, std::span<const Op* const> ops);
// A number as an argument of the kernel: in the dtype, or in the type that it is computed in.
uint64_t number_bits(const ChainSource::Number&, double);

}  // namespace tg::cuda
