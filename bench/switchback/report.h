// bench_switchback's output: the document's lines and JSON objects, rates, whole layers, a summary, a comparison with
// document 001, JSON.
#pragma once
#include <string>
#include <vector>

#include "switchback/switchback.h"

namespace tg::bench {

struct SwitchBackReport : Origin {
  SwitchBackSetup setup;
  std::string why;  // of this dtype
  std::vector<SwitchBackRow> rows = {};
};

// The document's output: "time standard_fwd: 1.210 ms" per op, the totals, the percentage of time saved.
std::string document_lines(const OpTimes&);
// The document's 25 keys in its order, on one line.
std::string document_object(const SwitchBackShape&, int64_t repeat, const OpTimes&);
std::string rate_lines(const SwitchBackRow&, const SwitchBackSetup&);
// The linear layer's time over this method's time, in one mode; 1 for the linear layer.
double speedup(const std::vector<LayerTime>&, const LayerTime&);
// The fastest linear layer's time over the fastest int8 layer's.
double best_speedup(const std::vector<LayerTime>&);
std::string layer_lines(const std::vector<LayerTime>&);

// A line per layer and batch, averaged over swapped and unswapped layers: totals, speedups, the share of quantising.
std::string summary(const std::vector<SwitchBackRow>&);
// Empty if the document has none of the rows. `ours` describes our measurement.
std::string compare_with_document(const std::vector<SwitchBackRow>&, const std::string& ours);

void write_switchback_json(const std::string& path, const SwitchBackReport&, const Peaks&);

}  // namespace tg::bench
