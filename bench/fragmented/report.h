// bench_fragmented's output: the document's text, tables of memory and figures, JSON.
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

// "Benchmarking with input_size=2048, ..." and a block per cell: linear, train, inference. Rows have one size, batch
// and variant. MB are 2^20 bytes, as in the document.
std::string document_text(const std::vector<FragmentedRow>&);
// A line per row, in MiB: measured; the document's framework with and without its harness's layer; 4 P and 3 P.
std::string memory_table(const std::vector<FragmentedRow>&);
// Empty if the document has none of the rows. `ours` describes our measurement.
std::string compare_with_document(const std::vector<FragmentedRow>&, const std::string& ours);

void write_fragmented_json(const std::string& path, const FragmentedReport&);

}  // namespace tg::bench
