// What is made of the cells of bench_fragmented: the document's text, tables of memory and of the figures of document
// 002, and a JSON file.
#pragma once
#include <string>
#include <vector>

#include "fragmented/fragmented.h"

namespace tg::bench {

struct FragmentedRow {
  FragmentedCell cell;
  FragmentedVariant variant;
  FragmentedResult result;
};
struct FragmentedReport : Origin {
  FragmentedSetup setup;
  std::vector<FragmentedRow> rows = {};
};

// "Benchmarking with input_size=2048, ..." with a block for each cell, as the document has them: linear, all of train,
// all of inference. Rows of one size, batch and variant. MB in it are 2^20 bytes, as the document's are.
std::string document_text(const std::vector<FragmentedRow>&);
// One line for each row, in MiB: ours, measured; the document's framework with and without what its harness keeps; 4 P
// and 3 P.
std::string memory_table(const std::vector<FragmentedRow>&);
// Row by row; empty where the document has none of them. `ours` says how our figures came about.
std::string beside_document(const std::vector<FragmentedRow>&, const std::string& ours);

// Atomically; an Error when the file cannot be written.
void write_fragmented_json(const std::string& path, const FragmentedReport&);

}  // namespace tg::bench
