// Checks of rows.h: the measured work trains.
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>

#include <algorithm>
#include <cmath>

#include "lora_training/rows.h"

namespace tg::bench {
namespace {

using Values = std::vector<float>;
// Largest |after - decay * before|.
double moved(const Values& before, const Values& after, double decay = 1 - kLr * kWeightDecay) {
  double most = 0;
  for (size_t i = 0; i < before.size(); ++i)
    most = std::max(most, std::abs(double(after[i]) - decay * double(before[i])));
  return most;
}
double largest(const Tensor& t) {
  const Values v = t.to_vector<float>();
  return moved(Values(v.size()), v, 1);
}

}  // namespace

void check_step(const Work& work, RunMode mode) {
  constexpr int kSteps = 50;
  const auto run = runner(work, mode);
  Values a = work.variables.at(0).to_vector<float>(), b = work.variables.at(1).to_vector<float>();
  std::vector<double> losses;
  for (int t = 1; t <= kSteps; ++t) {
    losses.push_back(run().at(0).item<float>());
    if (t > 2) continue;
    const Values new_a = work.variables[0].to_vector<float>(), new_b = work.variables[1].to_vector<float>();
    const double by_a = moved(a, new_a), by_b = moved(b, new_b);
    TG_CHECK(by_b > kLr / 2, state,
             "[bench_training] step {} of training ({}) moves B by {:.3g}. AdamW with a rate of {:g} moves it by about "
             "that. This step does not train: its time would mean nothing.",
             t, name_of(mode), by_b, kLr);
    // 1e-6: rounding of weights below 8
    TG_CHECK(t == 1 ? by_a < 1e-6 : by_a > kLr / 2, state,
             "[bench_training] step {} of training ({}) moves A by {:.3g}, besides its decay. The gradient of A is 0 "
             "at step 1, where B is 0, and not at step 2, with a rate of {:g}. The gradients are wrong.",
             t, name_of(mode), by_a, kLr);
    a = new_a, b = new_b;
  }
  TG_CHECK(std::abs(losses.front() - std::log(512.0)) < 1e-4, state,
           "[bench_training] the loss ({}) begins at {:.6g}. With B at 0 all 512 classes are equally likely, and it is "
           "log 512 = {:.6g}.",
           name_of(mode), losses.front(), std::log(512.0));
  TG_CHECK(losses.back() < losses.front() - 0.05, state,
           "[bench_training] the loss ({}) goes from {:.6g} to {:.6g} in {} steps. It should fall by 0.05 or more. "
           "This step does not train: its time would mean nothing.",
           name_of(mode), losses.front(), losses.back(), kSteps);
}

void check_adamw(const Work& work, RunMode mode) {
  const auto run = runner(work, mode);
  Values w = work.variables.at(0).to_vector<float>();
  for (int t = 1; t <= 2; ++t) {
    run();
    const Values next = work.variables[0].to_vector<float>();
    const double by = moved(w, next);
    TG_CHECK(by > kLr / 2 && by < 2 * kLr, state,
             "[bench_training] step {} of AdamW ({}) moves its parameter by {:.3g}. With a rate of {:g} and a constant "
             "gradient it moves it by about that. The step is wrong.",
             t, name_of(mode), by, kLr);
    w = next;
  }
}

void check_gradient(const Work& work, RunMode mode) {
  const auto run = runner(work, mode);
  for (int i = 0; i < 2; ++i) {  // compiled: a trace, then a replay
    const std::vector<Tensor> out = run();
    const double a = largest(out.at(1)), b = largest(out.at(2));
    TG_CHECK(a == 0 && b > 1e-3, state,
             "[bench_training] the largest gradient of A is {:.3g} and that of B {:.3g} ({}). With B at 0 that of A is "
             "0 and that of B is not. The gradients are wrong.",
             a, b, name_of(mode));
  }
}

void check_training(RunMode mode, Device device) {
  check_step(lora_step(device), mode);
  check_adamw(adamw_work(device), mode);
  const std::vector<TrainingRow> rows = training_rows();
  const auto gradient =
      std::ranges::find_if(rows, [](const TrainingRow& r) { return r.id.function == "forward_backward"; });
  check_gradient(gradient->make(device), mode);
}

}  // namespace tg::bench
