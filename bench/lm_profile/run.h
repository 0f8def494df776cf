// Document 003's runs: sizes of its model, types of a step (forward, backward, train), and a run: weights made on the
// host and moved, three steps to warm up in one range, one profiled step with a range for each phase, each ending
// synchronised. What a profile of it says is steps.h's. Users: bench_lm_profile.
#pragma once
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/optim/adamw.h>

#include <optional>

#include "common/gradient_sums.h"
#include "common/program.h"

namespace tg::bench {

struct LmFlags : SharedFlags {  // words as they were given
  std::string size = "2.7B", form = "document", precision = "f32", csv, trace;
  std::vector<std::string> types{"forward", "backward", "train"};
  int64_t batch = 4, context = 512, vocab = 10'000, layers = 0, warmup = 3, threads = 0;  // 0: of the size; all
  uint64_t seed = 1;
  bool answers = false;
};

enum class StepType {
  forward,   // the model on the tape
  backward,  // and the loss, and gradients, which add up over all steps
  train      // and AdamW; gradients are made anew each step
};
enum class LmForm {
  document,  // op by op, with matrices of scores: DocumentLm
  flash,     // the same with attention in blocks
  fused      // Gpt
};
enum class Precision { f32, tf32, bf16 };  // of products; bf16 over f32 parameters, with LmForm::fused only
std::string_view name_of(StepType);
std::string_view name_of(LmForm);
std::string_view name_of(Precision);

struct LmSetup {
  std::string size = "2.7B";
  GptConfig model = {};
  int64_t batch = 4, warmup = 3;
  LmForm form = LmForm::document;
  Precision precision = Precision::f32;
  Device device = {};
  uint64_t seed = 1;
};
// The document's form at one of the sizes small, medium, large, xl, 2.7B, and tiny, which is for trying. An Error lists
// the names.
GptConfig lm_config(std::string_view size);

struct LmPlan {
  std::vector<LmSetup>
      setups;  // the first is the one that the flags name, for all types; others are for the answers, for train
  std::vector<StepType> types;
};
// What the flags ask for. An Error names the first that is wrong, what does not go together, and a run that needs more
// memory than the device has.
LmPlan lm_plan(const LmFlags&);
// The most bytes of tensors on the device at one time, by a dry_run().
int64_t planned_bytes(const LmSetup&, StepType);

// A model with its batch, on the device.
class LmModel {
 public:
  explicit LmModel(const LmSetup&);
  LmModel(const LmModel&) = delete;
  LmModel& operator=(const LmModel&) = delete;

  // Runs the steps to warm up in a range "warmup", then one in "profiled_step", with "forward_pass",
  // "loss_computation", "backward_pass" and "optimizer_step" in it as far as the type goes.
  void run(StepType);
  // The loss of the last step; of forward, the mean of its logits. An Error when it is not finite, and when the steps
  // changed weights and should not, or did not and should.
  double checked_result(StepType) const;
  const Params& params() const { return params_; }
  const Tensor& tokens() const { return tokens_; }
  const GradientSums& gradients() const { return *sums_; }  // of backward
  Tensor logits() const;                                    // (B, T, V)

 private:
  Tensor forward() const;
  Tensor step(StepType, bool phases);  // what holds the tape, if anything does
  LmSetup setup_;
  Params params_;
  Model model_;    // the form
  Tensor tokens_;  // (B, T) i64
  std::optional<GradientSums> sums_;
  std::optional<AdamW> optimizer_;
  Tensor result_;  // 0-d, off the tape
};

struct LmResult {
  LmSetup setup;
  StepType type;
  int64_t peak_bytes = 0, parameters = 0;
  double result = 0;  // the loss; of forward, the mean of the logits
};
struct LmRun : LmResult {
  Profile profile;
};
// Makes a model, runs it with a profiler from the first weight on, and gives its memory back.
LmRun profiled(const LmSetup&, StepType);

}  // namespace tg::bench
