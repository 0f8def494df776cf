// Analysis of a profile of document 003's run: its ranges under the document's names for every form, and the profiled
// step's kernel times by phase, model part and GEMMs. Output: text, nsys-style tables, answers to the document's nine
// conclusions, JSON.
#pragma once
#include <tapegrad/core/profile/profile_tables.h>

#include <array>
#include <map>

#include "lm_profile/run.h"

namespace tg {
namespace bench {
enum class LmPart {
  embedding,
  projections,  // q, k, v, output of attention
  attention,    // scores, mask, softmax, weighted values
  rope,
  attention_rest,  // norm and residual sum of attention
  ffn_products,
  ffn_rest,  // activation, gate, norm, residual sum
  final_norm,
  head,
  loss,
  optimizer,
  other  // gradient accumulation, the batch
};
}
template <>
inline constexpr EnumNames<12> kEnumNames<bench::LmPart>{
    "part",
    {"embedding", "attention: projections", "attention: scores to values", "attention: rope",
     "attention: norm, residual", "ffn: products", "ffn: gate, norm, residual", "final norm", "head", "loss",
     "optimizer", "other"}};
}  // namespace tg
namespace tg::bench {

// Reduces the profile to the document's ranges: model parts by their last name ("attention_sublayer"), Gpt's by a
// table. Gpt's ops without a part become ranges: attention is scaled_dot_product_attention, both rotations one rope
// encoding; it has no mask, scores or softmax ranges.
Profile document_ranges(const Profile&);

inline constexpr size_t kLmParts = size_t(LmPart::other) + 1;
LmPart part_of(const Profile::Kernel&);
bool is_product(const Profile::Kernel&);  // GEMMs

struct LmPhase {
  double seconds = 0;  // the range on the host, until the device is done
  double kernels = 0;  // kernel seconds
  size_t launches = 0;
  double products = 0;                   // kernel seconds of GEMMs
  std::array<double, kLmParts> parts{};  // kernel seconds
  double part(LmPart p) const { return parts[size_t(p)]; }
};
struct LmStep {
  double seconds = 0;
  std::map<std::string, LmPhase> phases;  // key: the document's name
  LmPhase all;
  double allocated = 0;                                // bytes of tensors and scratch, including freed ones
  std::vector<double> layers;                          // kernel seconds per layer in forward_pass
  std::vector<double> host_layers, first_host_layers;  // the ranges, as the document sums them
  double ranges_attention = 0, ranges_ffn = 0;         // seconds of sublayer ranges in all steps
  // Covered shares: of the step by its phases; of forward_pass by embedding, layers, norm and head, by kernels and by
  // ranges. The latter reach 1 only if kernels run in the queuing thread.
  double phases_cover = 0, layers_cover = 0, host_layers_cover = 0;
  double phase_seconds(const std::string& name) const;
};
LmStep profiled_step(const Profile&);

struct LmCopies {
  size_t count = 0;
  double bytes = 0, seconds = 0;
};
LmCopies copies_of(const Profile&, Profile::Copy::Kind);

struct LmFigures : LmResult {  // a run and its analysed profile
  LmStep step;
  LmCopies to_device, to_host, on_device;
  std::vector<ProfileTable> tables;
  std::vector<std::string> notes;
};
LmFigures figures_of(const LmRun&);
std::string label(const LmFigures&);

std::string preamble(const LmSetup&, StepType);
std::string tables_text(const LmFigures&);
std::string step_text(const LmFigures&);
std::string answers(const std::vector<LmFigures>&);
std::string contexts(const std::vector<LmFigures>&);  // attention's share by context
std::string compare_with_document(const std::vector<LmFigures>&);

struct LmReport : Origin {
  std::vector<LmFigures> runs;
  std::map<Precision, double> peaks = {};  // measured GEMM peaks, GFLOP/s
};
// Model FLOPs, by the formula of utilisation(): whatever an implementation recomputes or skips.
double flops_of_step(const LmSetup&, StepType);
// For each run FLOPs, GFLOP/s, and their share of the peak (MFU, PaLM, arXiv:2204.02311, appendix B).
std::string utilisation(const LmReport&);

void write_lm_json(const std::string& path, const LmReport&);
// Writes each table as "<size>_<form>_<precision>_<type>_<report>.csv" into the folder, created if needed.
void write_csv(const std::string& folder, const LmFigures&);

}  // namespace tg::bench
