// Document 003's runs: model sizes, step types, and the protocol: weights created on the host and copied, three warm-up
// steps in one range, one profiled step with a range per phase, each synchronised at its end.
#pragma once
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/optim/adamw.h>

#include <optional>

#include "common/gradient_sums.h"
#include "common/program.h"

namespace tg {
namespace bench {
enum class StepType {
  forward,   // the model on the tape
  backward,  // plus loss and gradients, accumulated over steps
  train      // plus AdamW; new gradients each step
};
enum class LmForm {
  document,  // op by op, with score matrices: DocumentLm
  flash,     // DocumentLm with attention in blocks
  fused      // Gpt
};
enum class Precision { f32, tf32, bf16 };  // GEMMs' precision; bf16 (over f32 parameters): fused only
}  // namespace bench
template <> inline constexpr EnumNames<3> kEnumNames<bench::StepType>{"type", {"forward", "backward", "train"}};
template <> inline constexpr EnumNames<3> kEnumNames<bench::LmForm>{"form", {"document", "flash", "fused"}};
template <> inline constexpr EnumNames<3> kEnumNames<bench::Precision>{"precision", {"f32", "tf32", "bf16"}};
}  // namespace tg
namespace tg::bench {

struct LmSetup {
  std::string size = "2.7B";
  GptConfig model = {};
  int64_t batch = 4, warmup = 3;
  LmForm form = LmForm::document;
  Precision precision = Precision::f32;
  Device device = {};
  uint64_t seed = 1;
};
// The document's form at size small, medium, large, xl, 2.7B, or tiny (for tests). An Error lists them.
GptConfig lm_config(std::string_view size);

struct LmFlags : SharedFlags {
  LmSetup setup;  // lacks the model and the device
  std::vector<StepType> types{StepType::forward, StepType::backward, StepType::train};
  int64_t context = 512, vocab = 10'000, layers = 0;  // layers 0: the size's
  std::vector<int64_t> contexts;
  std::string csv, trace;
  bool answers = false;
};
struct LmPlan {
  std::vector<LmSetup> setups;  // first: the flags', all types; others: train
  std::vector<StepType> types;
};
// An Error names the first wrong flag, a conflict, or a run that exceeds the device's memory.
LmPlan lm_plan(const LmFlags&);
// Peak bytes of tensors on the device, by a dry_run().
int64_t planned_bytes(const LmSetup&, StepType);

class LmModel {
 public:
  explicit LmModel(const LmSetup&);
  LmModel(const LmModel&) = delete;
  LmModel& operator=(const LmModel&) = delete;

  // Runs the warm-up steps in a range "warmup", then one in "profiled_step", with the type's "forward_pass",
  // "loss_computation", "backward_pass" and "optimizer_step".
  void run(StepType);
  // Last step's loss, or forward's mean logit. Throws if it is not finite, or if the steps wrongly changed or kept
  // weights.
  double checked_result(StepType) const;
  const Params& params() const { return params_; }
  const GradientSums& gradients() const { return *sums_; }  // gradients of backward

 private:
  Tensor forward() const;
  Tensor step(StepType, bool phases);  // what holds the tape, if anything
  LmSetup setup_;
  Params params_;
  Model model_;    // model of the setup's form
  Tensor tokens_;  // (B, T) i64
  std::optional<GradientSums> sums_;
  std::optional<AdamW> optimizer_;
  Tensor result_;  // 0-d, off the tape
};

struct LmResult {
  LmSetup setup;
  StepType type;
  int64_t peak_bytes = 0, parameters = 0;
  double result = 0;  // the loss; forward: the mean of the logits
};
struct LmRun : LmResult {
  Profile profile;
};
// Runs a new model under a profiler from the first weight on, and frees it.
LmRun profiled(const LmSetup&, StepType);

}  // namespace tg::bench
