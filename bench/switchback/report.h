// What is made of the rows of bench_switchback: the document's lines and its JSON objects, rates, the layers as a
// whole, the table of all rows, a table beside the figures of document 001, and a JSON file.
#pragma once
#include <string>
#include <vector>

#include "switchback/switchback.h"

namespace tg::bench {

struct SwitchBackReport : Origin {
  SwitchBackSetup setup;
  std::string why;  // this dtype
  std::vector<SwitchBackRow> rows = {};
};

// "time standard_fwd: 1.210 ms" for each op, the totals and the percent of time saved, as the document's program says
// it.
std::string document_lines(const OpTimes&);
// The document's 25 keys in its order, on one line.
std::string document_object(const SwitchBackShape&, int64_t repeat, const OpTimes&);
std::string rate_lines(const SwitchBackRow&, const SwitchBackSetup&);
// Of a way, the time of the linear layer in the same mode over its time; 1 of the linear layer itself.
double speedup(const std::vector<LayerTime>&, const LayerTime&);
// The fastest linear layer's time over that of the fastest of 8-bit codes.
double best_speedup(const std::vector<LayerTime>&);
std::string layer_lines(const std::vector<LayerTime>&);  // empty where there are none

// One line for each layer and batch, the mean of the layers not swapped and swapped, as far as they are there: totals,
// how many times as fast, and the share of quantising.
std::string summary(const std::vector<SwitchBackRow>&);
// Row by row; empty where the document has none of them. `ours` says how our times came about.
std::string beside_document(const std::vector<SwitchBackRow>&, const std::string& ours);

// Atomically; an Error when the file cannot be written.
void write_switchback_json(const std::string& path, const SwitchBackReport&, const Peaks&);

}  // namespace tg::bench
