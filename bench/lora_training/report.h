// bench_training's JSON, and its comparison with document 000.
#pragma once
#include "common/program.h"
#include "lora_training/rows.h"

namespace tg::bench {

// A figure of document 000, in seconds: confidence interval and estimate; null for other ids.
struct DocumentFigure {
  const char* id;
  double low, point, high;
};
const DocumentFigure* document_figure(const std::string& id);

struct TrainingReport : Origin {
  RunMode mode = RunMode::eager;
  std::vector<Measured> rows;
};
void write_training_json(const std::string& path, const TrainingReport&);
// Both figures of each id in the document, and its time over ours; empty without any.
std::string compare_with_document(const std::vector<Measured>&);

}  // namespace tg::bench
