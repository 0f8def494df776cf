// bench_lm_profile's output: the text around a profile, nsys-style tables, answers to document 003's nine conclusions,
// a comparison with its figures, JSON.
#pragma once
#include <tapegrad/core/profile/profile_tables.h>

#include <map>
#include <string>
#include <vector>

#include "lm_profile/timeline.h"

namespace tg::bench {

struct LmFigures : LmResult {  // a run and its analysed profile
  LmStep step;
  Json timeline;  // timeline.h
  LmCopies to_device, to_host, on_device;
  std::vector<ProfileTable> tables;
  std::vector<std::string> notes;
};
LmFigures figures_of(const LmRun&);
std::string label(const LmFigures&);

// "Model: 2.7B, Context Length: 512" etc., printed before the model is made.
std::string preamble(const LmSetup&, StepType);
// All tables with nsys's numbers; a missing one says why.
std::string tables_text(const LmFigures&);
// Phases of the profiled step with kernel times, model parts, and the share that ranges cover.
std::string step_text(const LmFigures&);
// Nine numbered paragraphs from steps of train; unmeasured ones say so.
std::string answers(const std::vector<LmFigures>&);
// Phases, copies and kernels against the document's; empty for sizes other than 2.7B.
std::string compare_with_document(const std::vector<LmFigures>&);

struct LmReport : Origin {
  std::vector<LmFigures> runs;
  std::map<Precision, double> peaks = {};  // measured GEMM peaks, GFLOP/s
};
void write_lm_json(const std::string& path, const LmReport&);
// Writes each table as "<size>_<form>_<precision>_<type>_<report>.csv" into the folder, created if needed.
void write_csv(const std::string& folder, const LmFigures&);

}  // namespace tg::bench
