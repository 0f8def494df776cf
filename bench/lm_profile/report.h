// What is made of the runs of bench_lm_profile: the text around a profile, its tables as nsys prints them, answers to
// the nine conclusions that document 003 draws from its own, a table beside its figures, and a JSON file.
#pragma once
#include <tapegrad/core/profile/profile_tables.h>

#include <map>
#include <string>
#include <vector>

#include "lm_profile/timeline.h"

namespace tg::bench {

struct LmFigures : LmResult {  // of a run, its profile taken apart
  LmStep step;
  Json timeline;  // timeline.h
  LmCopies to_device, to_host, on_device;
  std::vector<ProfileTable> tables;
  std::vector<std::string> notes;
};
LmFigures figures_of(const LmRun&);
std::string label(const LmFigures&);  // "document f32 train"

// "Model: 2.7B, Context Length: 512" and so on, up to what is printed before the model is made.
std::string preamble(const LmSetup&, StepType);
// All tables under the numbers that nsys gives them; where one is missing, why.
std::string tables_text(const LmFigures&);
// Phases of the profiled step with the time of their kernels, parts of the model, and how much of it ranges cover.
std::string step_text(const LmFigures&);
// Nine numbered paragraphs out of steps of train; what was not measured says so.
std::string answers(const std::vector<LmFigures>&);
// Phases, copies and kernels beside the document's; empty for other sizes than 2.7B.
std::string beside_document(const std::vector<LmFigures>&);

struct LmReport : Origin {
  std::vector<LmFigures> runs;
  std::map<Precision, double> peaks = {};  // GFLOP/s of products, of those that were measured
};
// Atomically; an Error when the file cannot be written.
void write_lm_json(const std::string& path, const LmReport&);
// Each table of a run as "<size>_<form>_<precision>_<type>_<report>.csv" in the folder, which is made if it is not
// there.
void write_csv(const std::string& folder, const LmFigures&);

}  // namespace tg::bench
