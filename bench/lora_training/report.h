// What is made of the rows of bench_training besides criterion.h's text: a JSON file, and a table beside the
// figures of document 000.
#pragma once
#include "common/program.h"
#include "lora_training/host_time.h"

namespace tg::bench {

// Of document 000, in seconds: the ends of the confidence interval and the estimate. Null for other ids.
struct DocumentFigure {
  const char* id;
  double low, point, high;
};
const DocumentFigure* document_figure(const std::string& id);

struct TrainingReport : Origin {
  std::string mode;
  std::vector<Measured> rows;
  std::optional<HostTime> host;
};
// Atomically; an Error when the file cannot be written.
void write_training_json(const std::string& path, const TrainingReport&);
// Both figures of each id that the document has, and how many times ours goes into its; empty where there is none.
std::string beside_document(const std::vector<Measured>&);

}  // namespace tg::bench
