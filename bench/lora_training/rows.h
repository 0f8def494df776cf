// Document 000's work (LoRA layers, a gradient, AdamW, a training step, softmax and norms) as tensor functions, to run
// eagerly, compiled or lazily; small CPU graphs, eager and lazy; JSON, and the comparison with the document.
#pragma once
#include "common/program.h"
#include "lora_training/criterion.h"

#include <tapegrad/core/plan/compile.h>

namespace tg::bench {

struct Work {
  TensorFunction f;  // function whose results are off the tape
  std::vector<Tensor> in;
  std::vector<Tensor> variables = {};  // assigned by f
};
enum class Runs {
  in_mode,     // mode: RunMode
  lazily,      // LazyScope, then evaluated, in every mode
  graph_only,  // LazyScope, never evaluated
};
struct TrainingRow {
  BenchmarkId id;
  std::function<Work(Device)> make;  // draws the data: N(0, 1), always the same
  std::optional<uint64_t> elements = {};
  Runs runs = Runs::in_mode;
  std::optional<int> samples = {};
};
std::vector<TrainingRow> training_rows();  // the document's 17
std::vector<TrainingRow> lazy_rows();
Benchmark benchmark(const TrainingRow&, RunMode, Device);

// full_training_step/complete_iteration: LoRA 512 -> 512 of rank 8 on x (4, 64, 512), cross-entropy with labels 0,
// backward, and AdamW on A (512, 8) and B (8, 512), its variables. Returns the loss.
Work lora_step(Device);
// One AdamW step on w (512, 512), with a constant gradient.
Work adamw_work(Device);
inline constexpr double kLr = 1e-4, kWeightDecay = 0.01;  // values for AdamW in all modes
std::function<std::vector<Tensor>()> runner(const Work&, RunMode);

// Throw Errors, so that broken work is never timed. check_step() trains for 50 steps: B moves at step 1; A only decays
// at step 1 (its gradient is 0 while B is) and moves at step 2; the loss starts at log 512 and falls.
void check_step(const Work&, RunMode);
void check_adamw(const Work&, RunMode);
void check_gradient(const Work&, RunMode);
void check_training(RunMode, Device);

std::optional<Estimate> document_figure(std::string_view id);  // seconds

struct TrainingReport : Origin {
  RunMode mode = RunMode::eager;
  std::vector<Measured> rows;
};
void write_training_json(const std::string& path, const TrainingReport&);
std::string compare_with_document(const std::vector<Measured>&);

}  // namespace tg::bench
