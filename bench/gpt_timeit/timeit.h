// Document 004's profile of a GPT: which runs there are, in its order, and how one is timed: step by step, by the
// host's clock, each step ending synchronised. Gradients are never set to zero: they add up over all steps of a model.
// What is printed is report.h's. Users: bench_gpt_timeit.
#pragma once
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>

#include "common/gradient_sums.h"
#include "common/program.h"

namespace tg::bench {

struct TimeitFlags : SharedFlags {  // words as they were given
  std::vector<std::string> sizes{"small", "medium"}, computations{"forward", "backward", "forward_backward"},
      mixed{"False", "True"};
  std::vector<int64_t> warmups{0, 1};
  int64_t steps = 5, batch = 16, context = 128, vocab = 10'000, threads = 0;  // threads 0: all
  uint64_t seed = 20230310;
  std::string mode = "eager", matmul_precision = "highest";
  bool matrix_only = false, check_warmup = false;
};

enum class Computation { forward, backward, forward_backward };
std::string_view name_of(Computation);

struct TimeitRun {
  std::string size;  // "small" and "medium" are the document's, "tiny" has two blocks of width 32
  Computation computation = Computation::forward;
  int64_t warmup = 0;       // steps before the timed ones
  bool mixed = false;       // bf16 over f32 parameters
  std::string key() const;  // "small_forward_warmup_0_mixed_False"
};
struct TimeitSetup {  // of all runs
  int64_t steps = 5, batch = 16, context = 128, vocab = 10'000;
  uint64_t seed = 20230310;  // of each model and of its tokens
  RunMode mode = RunMode::eager;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  Device device = {};
};
struct TimeitPlan {
  TimeitSetup setup;
  // Before the matrix, on one model, whose gradients go on: forward and backward of the first size, once without a
  // warm-up step and once with one.
  std::vector<TimeitRun> standalone;
  std::vector<TimeitRun> matrix;
};
// What the flags ask for. An Error names the first that is wrong, a run that comes twice, a filter that leaves no run,
// and a run that needs more memory than the device has.
TimeitPlan timeit_plan(const TimeitFlags&);

GptConfig timeit_config(const TimeitRun&, const TimeitSetup&);

struct TimeitResult {
  Computation computation = Computation::forward;
  std::vector<double> times = {};  // of each step, in seconds
  double mean_time = 0, median_time = 0, std_dev = 0, min_time = 0, max_time = 0, total_time = 0;  // std_dev with n
  int64_t profile_steps = 0;
  int64_t peak_bytes = 0;  // of tensors on the device, all steps and parameters
  double loss = 0;         // of the last step
};
TimeitResult summarised(Computation, std::vector<double> times);  // of one step or more

// A model with its tokens. Not to be moved: what it compiles refers to it.
class TimeitModel {
 public:
  // Of the run, the size and whether it is mixed count.
  TimeitModel(const TimeitRun&, const TimeitSetup&);
  TimeitModel(const TimeitModel&) = delete;
  TimeitModel& operator=(const TimeitModel&) = delete;
  // The most bytes of tensors on the device at one time, by a dry_run(): of an eager run. A compiled one, whose
  // functions plan their memory, takes about as many.
  static int64_t planned_bytes(const TimeitRun&, const TimeitSetup&);

  // Runs `warmup` steps, then times the steps of the setup. forward covers the model and its loss on the tape; backward
  // the gradients and their adding up; forward_backward all of it. Compiled: forward keeps nothing for a backward, and
  // backward, as a compiled function is one piece, is forward_backward less forward, run one after the other; on CUDA
  // the third step records a graph. An Error when the loss is not that of guessing, as it must be with weights this
  // small, or when the gradients of the steps, which are equal as nothing is updated, do not add up.
  TimeitResult profile(Computation, int64_t warmup);
  const std::vector<Tensor>& gradients() const { return gradients_.all(); }  // sums, in the order of params().all()
  const Params& params() const { return params_; }

 private:
  Tensor loss_on_tape() const;
  double step(Computation);
  double compiled_step(Computation);
  double timed(const std::function<void()>&) const;
  void trace(Computation);
  void check_work() const;

  TimeitSetup setup_;
  DType compute_;
  Params params_;
  Model model_;
  Tensor tokens_, targets_;  // (B, T) i64
  GradientSums gradients_;
  std::optional<Compiled> forward_, both_;
  Tensor loss_;  // of the last step, off the tape
  int64_t passes_ = 0;
  std::vector<float> first_;  // the gradient of the last norm after the first pass
};

}  // namespace tg::bench
