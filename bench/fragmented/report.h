// Output of bench_fragmented: the document's text, tables of memory and of document 002's figures, and JSON.
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

// "Benchmarking with input_size=2048, ..." and one block per cell in the document's order: linear, train, inference.
// The rows have one size, batch and variant. MB are 2^20 bytes, as in the document.
std::string document_text(const std::vector<FragmentedRow>&);
// One line per row, in MiB: measured; the document's framework with and without its harness's layer; 4 P and 3 P.
std::string memory_table(const std::vector<FragmentedRow>&);
// Row by row; empty if the document has none of them. `ours` describes our measurement.
std::string beside_document(const std::vector<FragmentedRow>&, const std::string& ours);

// Atomic; an Error if the file cannot be written.
void write_fragmented_json(const std::string& path, const FragmentedReport&);

}  // namespace tg::bench
