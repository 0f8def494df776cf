// bench_lm_profile's output: the text around a profile, nsys-style tables, answers to document 003's nine conclusions,
// a comparison with its figures, JSON.
#pragma once
#include <tapegrad/core/profile/profile_tables.h>

#include <map>
#include <string>
#include <vector>

#include "lm_profile/steps.h"

namespace tg::bench {

// The profiled step over time: ranges, kernels by model part, device memory, thinned for report.py.
// Throws without a profiled step. Times are in seconds since its begin:
//   "seconds"   of the step
//   "ranges"    [[name, depth, begin, end]] of the step's thread, under the document's names; the step has depth 0
//   "parts"     [name]: all of LmPart
//   "tracks"    [name]: "cpu thread 0", "cuda:0 stream 7"
//   "kernels"   [[track, part, begin, end, count]] by begin; adjacent ones of one part with gaps below 1/2000 of the
//               step are merged
//   "memory"    {"device", "points": [[begin, bytes]]}, at most 600: the peak until the next point
Json timeline_of(const Profile&, Device);

struct LmFigures : LmResult {  // a run and its analysed profile
  LmStep step;
  Json timeline;
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
// Model FLOPs, whatever an implementation recomputes or skips: 2 T (L (4 d^2 + 3 d ff) + V d) + 4 T C d L, with T
// tokens, contexts of C, L layers, width d, ff and vocabulary V, the whole score matrix included. With the backward
// pass, three times that.
double flops_of_step(const LmSetup&, StepType);
// The formula, and for each run FLOPs, GFLOP/s, and their share of the peak (MFU, PaLM, arXiv:2204.02311, appendix B),
// if it is known.
std::string utilisation(const LmReport&);

void write_lm_json(const std::string& path, const LmReport&);
// Writes each table as "<size>_<form>_<precision>_<type>_<report>.csv" into the folder, created if needed.
void write_csv(const std::string& folder, const LmFigures&);

}  // namespace tg::bench
