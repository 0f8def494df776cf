// Document 004's profile of a GPT: its runs in its order, timed step by step with the host's clock, each step
// synchronised, and output. Gradients accumulate over all steps of a model.
#pragma once
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>

#include <chrono>

#include "common/gradient_sums.h"
#include "common/program.h"

namespace tg {
namespace bench {
enum class Computation { forward, backward, forward_backward };
}
template <>
inline constexpr EnumNames<3> kEnumNames<bench::Computation>{"computation",
                                                             {"forward", "backward", "forward_backward"}};
}  // namespace tg
namespace tg::bench {

struct TimeitRun {
  std::string size;  // "tiny" has two blocks of width 32
  Computation computation = Computation::forward;
  int64_t warmup = 0;       // steps before the timed ones
  bool mixed = false;       // bf16 over f32 parameters
  std::string key() const;  // "small_forward_warmup_0_mixed_False"
};
struct TimeitSetup {
  int64_t steps = 5, batch = 16, context = 128, vocab = 10'000;
  uint64_t seed = 20230310;
  RunMode mode = RunMode::eager;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  Device device = {};
  // Fields of the document's profile.
  double attn_pdrop = 0, resid_pdrop = 0, token_position_pdrop = 0;
  int64_t d_ff = 0;  // 0: 4 d_model
  bool bias = false, weight_tie = false, tanh = false;
};
struct TimeitFlags : SharedFlags {
  TimeitSetup setup;  // lacks the device
  std::vector<std::string> sizes{"small", "medium"};
  std::vector<Computation> computations{Computation::forward, Computation::backward, Computation::forward_backward};
  std::vector<Word> mixed{Word::False, Word::True};
  std::vector<int64_t> warmups{0, 1};
  bool matrix_only = false, check_warmup = false;
};
struct TimeitPlan {
  TimeitSetup setup;
  // Before the matrix, on one model with accumulating gradients: forward_backward of the first size, without and with a
  // warm-up step.
  std::vector<TimeitRun> standalone;
  std::vector<TimeitRun> matrix;
};
std::vector<TimeitRun> timeit_runs(const TimeitFlags&);  // the matrix, without the filter
TimeitPlan timeit_plan(const TimeitFlags&);

GptConfig timeit_config(const TimeitRun&, const TimeitSetup&);

struct TimeitResult {
  Computation computation = Computation::forward;
  std::vector<double> times = {};
  double mean_time = 0, median_time = 0, std_dev = 0, min_time = 0, max_time = 0, total_time = 0;
  int64_t profile_steps = 0;
  int64_t peak_bytes = 0;  // tensors on the device, over all steps
  double loss = 0;         // loss of the last step
};
TimeitResult summarised(Computation, std::vector<double> times);

// A model with its tokens. Not movable: compiled functions refer to it.
class TimeitModel {
 public:
  TimeitModel(const TimeitRun&, const TimeitSetup&);
  TimeitModel(const TimeitModel&) = delete;
  TimeitModel& operator=(const TimeitModel&) = delete;
  // Peak bytes of an eager run's tensors on the device, by a dry_run(); about the same for compiled.
  static int64_t planned_bytes(const TimeitRun&, const TimeitSetup&);

  // Runs `warmup` steps, then the timed ones. forward: model and loss on the tape; backward: gradients and their
  // accumulation; forward_backward: both. Compiled: forward keeps nothing for backward, and backward is
  // forward_backward minus forward, because a compiled function cannot be split; on CUDA the third step records a
  // graph. Throws unless the initial loss is that of guessing (the weights are small), and the gradients are the sum of
  // equal steps, since no step updates.
  TimeitResult profile(Computation, int64_t warmup);
  const std::vector<Tensor>& gradients() const { return gradients_.all(); }  // sums, in the order of params().all()
  const Params& params() const { return params_; }

 private:
  Tensor loss_on_tape();
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
  Rng masks_;                // set before each step: gradients are equal
  GradientSums gradients_;
  std::optional<Compiled> forward_, both_;
  Tensor loss_;  // loss of the last step, off the tape
  int64_t passes_ = 0;
  std::vector<float> first_;  // last norm, after the first pass
};

struct TimeitRow {
  TimeitRun run;
  TimeitResult result;
};
struct TimeitReport : Origin {
  TimeitSetup setup;
  std::vector<TimeitRow> standalone, matrix;
};

// "2026-01-31 12:00:00,123 - bench_gpt_timeit - INFO - <text>\n", in local time.
std::string log_line(std::string_view text, std::chrono::system_clock::time_point);
std::string model_json(const GptConfig&);
std::string profiler_json(const TimeitRun&, int64_t steps);
std::string result_json(const TimeitResult&);

// Like pandas: a line per row in `order`, labelled with its index in `rows`.
std::string data_frame(const std::vector<TimeitRow>& rows, const std::vector<size_t>& order);
std::vector<size_t> by_mean_time(const std::vector<TimeitRow>&);
// forward_backward in f32 of the last size, without and with warm-up steps.
std::vector<size_t> warmup_rows(const std::vector<TimeitRow>&);

// Document 004: with all else equal, warm-up steps lower the standard deviation.
struct WarmupClaim {
  struct Pair {
    std::string name;  // "small_forward_mixed_False"
    double cold, warm;
    bool holds() const { return warm < cold; }
  };
  std::vector<Pair> pairs;
  size_t holding() const;
  bool holds() const { return !pairs.empty() && holding() == pairs.size(); }
};
WarmupClaim warmup_claim(const std::vector<TimeitRow>&);
std::string text(const WarmupClaim&);
std::string sums_text(const std::vector<TimeitRow>&);

const Json* timeit_figure(std::string_view name);  // figure of document 004, in ms
std::string compare_with_document(const TimeitReport&);

void write_timeit_json(const std::string& path, const TimeitReport&);

}  // namespace tg::bench
