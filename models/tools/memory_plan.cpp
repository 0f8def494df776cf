#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/tools/memory_plan.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>
#include <array>
#include <optional>

namespace tg {
namespace {

// Later micro-batches cost only their tokens: the second adds to gradients (maybe bf16), the third to f32 sums.
constexpr int64_t kMicroBatches = 3;

MemoryPlan of_step(const Model& model, const Params& trained, const std::function<Batch()>& batch, const TrainConfig& c,
                   Device device, const std::shared_ptr<Communicator>& comm) {
  MemoryPlan plan;
  const auto live = [&] { return memory_stats(device).live; };
  plan.weights = live();
  const auto optimizer = detail::make_optimizer(c, trained.trainable(), comm);
  plan.moments = live() - plan.weights;

  Rng dropout;
  {
    const Batch b = batch();
    const int64_t before = live();
    const Tensor loss = detail::training_loss(model, c, b.to(device), dropout);
    plan.activations = live() - before;
  }
  size_t reached = 0;
  int64_t complete = 0;  // gradient bytes in this backward
  const auto look = [&] {
    const int64_t peak = memory_stats(device).peak;
    if (peak > plan.peak) plan.peak = peak, plan.gradients_at_peak = complete;
  };
  const std::vector<Parameter> parameters = trained.trainable();
  for (const Parameter& p : parameters)
    Tensor(p.tensor).on_grad([&](const Tensor& g) {
      if (reached++ % parameters.size() == 0) complete = 0;  // a new micro-batch
      look();
      complete += int64_t(g.layout().bytes());
      return g;
    });
  std::vector<Batch> some;
  const int64_t ranks = std::min(comm->size(), 2);  // shard() reads a second rank's batches for weights
  for (int64_t i = 0; i < ranks * std::min(c.micro_batches_of_rank(comm->size()), kMicroBatches); ++i)
    some.push_back(batch());
  const MicroBatches micro(some);
  const auto others = [&](const Tensor& t) {  // each rank reads all tokens
    return zeros(Shape{c.accumulate - int64_t(some.size()), t.numel()}, t.dtype());
  };
  const Tensor inputs = others(some[0].inputs), targets = others(some[0].targets),
               weights = others(zeros({1}, DType::f64));
  std::vector<Rng> draws(some.size(), dropout);
  const StepGradients g =
      detail::step_gradients(model, trained, c, micro.shard(0, int(ranks)), draws, comm, optimizer->partition());
  for (const auto& [id, gradient] : g.grads.map()) plan.gradients += int64_t(gradient.layout().bytes());
  look();
  optimizer->step(g.grads, detail::step_options(c, g.norm));
  look();
  return plan;
}

}  // namespace

std::string detail::readable_bytes(int64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double n = double(bytes);
  size_t unit = 0;
  for (; n >= 999.95 && unit + 1 < kUnits.size(); ++unit) n /= 1000;
  return fmt::format("{:.{}f} {}", n, unit == 0 ? 0 : n < 9.9995 ? 3 : n < 99.995 ? 2 : 1, kUnits[unit]);
}

std::string detail::what_fits(const std::vector<std::vector<Variant>>& lists, int64_t most) {
  std::string all;
  const auto add_if_it_fits = [&](const Variant& v) {
    try {
      const int64_t bytes = v.bytes();
      if (bytes <= most) all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", v.name, readable_bytes(bytes));
      return bytes <= most;
    } catch (const Error&) {  // sizes beyond memory
      return false;
    }
  };
  for (const std::vector<Variant>& list : lists) (void)std::ranges::any_of(list, add_if_it_fits);
  return all.empty() ? "" : fmt::format("These would fit: {}.", all);
}
void detail::check_fits(const Variant& run, Device device, const std::function<std::string(int64_t)>& advice) {
  const int64_t there = int64_t(runtime_of(device).memory(device.index)), bytes = run.bytes();
  TG_CHECK(there == 0 || bytes <= there, memory,
           "{} takes {} of memory, and {} has {}, which is {} too little. All tensors of a step must fit. {}", run.name,
           readable_bytes(bytes), device == Device::cpu() ? "this process" : to_string(device), readable_bytes(there),
           readable_bytes(bytes - there), advice(there));
}

MemoryPlan plan_memory(const MakeModel& make_model, const std::function<Batch()>& batch, const TrainConfig& train,
                       Device device, const LoraConfig* adapters, DType weights,
                       const std::shared_ptr<Communicator>& comm) {
  train.validate();
  (void)train.micro_batches_of_rank(comm->size());
  MemoryPlan plan;
  dry_run([&] {
    const Params params(device, train.seed, weights);
    Model model = make_model(params);
    std::optional<Lora> lora;
    if (adapters) lora = apply_lora(model, params, *adapters);
    const Params& trained = lora ? lora->params() : params;
    model = detail::with_linears(model, trained, train);
    plan = of_step(model, trained, batch, train, device, comm);
    plan.parameters = params.numel() + (lora ? lora->params().numel() : 0);
  });
  return plan;
}
MemoryPlan plan_memory(const GptConfig& config, const TrainConfig& train, Device device, const LoraConfig* adapters,
                       DType weights, const std::shared_ptr<Communicator>& comm,
                       const std::function<TensorSource()>& source) {
  const auto windows = [&] { return zeros({train.batch, train.window_in(config.context)}, DType::i32); };  // (B, T)
  const auto batch = [&] { return Batch{windows(), windows()}; };
  const auto model = [&](const Params& params) {
    if (source) params.load(source());
    return Gpt(params, config);
  };
  return plan_memory(model, batch, train, device, adapters, weights, comm);
}

}  // namespace tg
