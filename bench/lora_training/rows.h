// The work of document 000's benchmarks: LoRA layers, a gradient, AdamW, a training step, softmax and norms. Each is a
// plain function of tensors, so that one program runs it at once, compiled or lazily. And small graphs on the CPU,
// eager beside lazy. Ids, sizes and data; measuring is criterion.h's. Users: bench_training.
#pragma once
#include "common/harness.h"
#include "lora_training/criterion.h"

#include <tapegrad/core/plan/compile.h>

namespace tg::bench {

struct Work {
  TensorFunction f;  // its results are off the tape
  std::vector<Tensor> in;
  std::vector<Tensor> variables = {};  // that f assigns
};
enum class Runs {
  in_mode,     // as the mode says
  lazily,      // under a LazyScope, then evaluated: in every mode
  graph_only,  // under a LazyScope, and never evaluated
};
struct TrainingRow {
  BenchmarkId id;
  std::function<Work(Device)> make;  // draws the data: N(0, 1), the same each time
  std::optional<uint64_t> elements = {};
  Runs runs = Runs::in_mode;
  std::optional<int> samples = {};
};
std::vector<TrainingRow> training_rows();  // the document's 17, in its order
// Add, products, LoRA, a chain and a graph of ten ops. For the CPU.
std::vector<TrainingRow> lazy_rows();
Benchmark benchmark(const TrainingRow&, RunMode, Device);

// What full_training_step/complete_iteration runs: LoRA 512 -> 512 of rank 8 on x (4, 64, 512), cross-entropy with
// labels 0, backward, and AdamW on A (512, 8) and B (8, 512), its variables. Returns the loss.
Work lora_step(Device);
// One step of AdamW on w (512, 512), with a gradient that stays the same.
Work adamw_work(Device);
inline constexpr double kLr = 1e-4, kWeightDecay = 0.01;  // of both
std::function<std::vector<Tensor>()> runner(const Work&, RunMode);

// Errors, so that no time is printed for work that is not done. Trains for 50 steps: B moves at step 1, A by nothing
// but its decay at step 1 and otherwise at step 2 (its gradient is 0 as long as B is), and the loss begins at log 512
// and falls.
void check_step(const Work&, RunMode);
// Each of two steps of AdamW moves the variable by about its rate.
void check_adamw(const Work&, RunMode);
// The results of `work` are a loss and the gradients of A, all 0, and of B, which are not.
void check_gradient(const Work&, RunMode);
void check_training(RunMode, Device);  // all, of what the rows run

}  // namespace tg::bench
