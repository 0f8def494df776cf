// What a profile of document 003's run says: its ranges under the document's names, whichever form the model has, and
// the profiled step taken apart by the time of its kernels: phases, parts of the model, products. Numbers only; text is
// report.h's.
#pragma once
#include <array>
#include <map>

#include "lm_profile/run.h"

namespace tg::bench {

// The profile with the ranges that the document has, and no others: parts of the model by their last name
// ("attention_sublayer"), those of Gpt by a table. What Gpt has no part for is an op: attention is
// scaled_dot_product_attention, the rotations of queries and keys are one rope encoding; its attention makes no mask,
// and has no scores and no softmax of their own.
Profile document_ranges(const Profile&);

// Of the model, forward and backward.
enum class LmPart {
  embedding,
  projections,  // queries, keys, values, and the output of attention
  attention,    // scores, mask, softmax, weighted values
  rope,
  attention_rest,  // its norm and residual sum
  ffn_products,
  ffn_rest,  // activation and gate, norm and residual sum
  final_norm,
  head,
  loss,
  optimizer,
  other  // gradients that add up, the batch
};
inline constexpr size_t kLmParts = size_t(LmPart::other) + 1;
std::string_view name_of(LmPart);
LmPart part_of(const Profile::Kernel&);
bool is_product(const Profile::Kernel&);  // of matrices

struct LmPhase {
  double seconds = 0;  // of the range, on the host; it ends when the device is done
  double kernels = 0;  // seconds that kernels ran
  size_t launches = 0;
  double products = 0;                   // seconds of those that multiply matrices
  std::array<double, kLmParts> parts{};  // seconds of kernels
  double part(LmPart p) const { return parts[size_t(p)]; }
};
// The profiled step of a run.
struct LmStep {
  double seconds = 0;                                  // of the range
  std::map<std::string, LmPhase> phases;               // by the document's name
  LmPhase all;                                         // of the whole step
  double allocated = 0;                                // bytes of tensors and scratch memory, freed ones too
  std::vector<double> layers;                          // kernel seconds of each layer in forward_pass
  std::vector<double> host_layers, first_host_layers;  // the ranges themselves, as the document sums them
  double ranges_attention = 0,
         ranges_ffn = 0;  // seconds of the sublayers' ranges in all steps, as the document has them
  // Shares of what they should make up: the phases of the step, and embedding, layers, norm and head of forward_pass,
  // by their kernels and by their ranges; those are the whole only where kernels run in the thread that queues them.
  double phases_cover = 0, layers_cover = 0, host_layers_cover = 0;
  double phase_seconds(const std::string& name) const;
};
// The range of the profiled step; an Error when the profile has none.
const Profile::Range& step_range(const Profile&);
LmStep profiled_step(const Profile&);  // an Error when the profile has none

struct LmCopies {
  size_t count = 0;
  double bytes = 0, seconds = 0;
};
LmCopies copies_of(const Profile&, Profile::Copy::Kind);

}  // namespace tg::bench
