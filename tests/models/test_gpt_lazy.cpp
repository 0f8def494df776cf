// A lazy training step of a GPT is one graph and one plan, with eager mode's bits and no more memory.
#include <tapegrad/core/node.h>
#include <tapegrad/tapegrad.h>

#include "support/effort.h"
#include "support/helpers.h"

using namespace tg;
namespace {
struct LazyRun {
  std::vector<std::vector<std::byte>> losses, weights;
  int64_t peak = 0;                 // last steps' peak over the memory between them
  uint64_t plans = 0, kernels = 0;  // counts of the last steps
  int64_t arena = 0, live = 0;      // bytes of the last plan
};
GptConfig modernised(GptConfig c) {
  c.norm = NormKind::rms_norm, c.positions = Positions::rope, c.activation = Activation::swiglu;
  return c;
}
LazyRun train(const GptConfig& config, bool lazy, ForwardOptions how, bool cheap = false) {
  constexpr int kSteps = 10, kWarm = 3;
  const Params params(Device(), 5);
  const Gpt model(params, config);
  AdamW optimiser(params.trainable(), {.lr = 1e-3, .weight_decay = 0.1});
  Rng data{3}, noise{4};
  how.rng = &noise;
  LazyRun run;
  EngineStats before{};
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> ids(2 * 2 * size_t(config.context));
    for (int32_t& id : ids) id = int32_t(data.below(uint64_t(config.vocab_size)));
    const Tensor both = tensor(ids, {2, 2, config.context}), tokens = slice(both, 0, 0, 1),
                 targets = slice(both, 0, 1, 2);
    const Shape shape{2, config.context};
    if (step == kWarm) before = engine_stats();
    reset_peak();
    const int64_t base = memory_stats().live;
    {
      Mode mode(lazy);
      const ScopeIf<RecomputeScope> recompute(cheap);
      const Tensor loss =
          cross_entropy(model.forward(reshape(tokens, shape), how).to(DType::f32), reshape(targets, shape));
      optimiser.set_lr(1e-3 / double(1 + step));
      optimiser.step(backward(loss), {.clip_norm = 1});
      std::vector<Tensor> roots{loss};
      for (const Parameter& p : params.all()) roots.push_back(p.tensor);
      const EngineStats planned = engine_stats();
      eval(roots);
      if (engine_stats().plans > planned.plans) {
        run.arena = int64_t(engine_stats().planned_bytes - planned.planned_bytes);
        run.live = int64_t(engine_stats().planned_live_bytes - planned.planned_live_bytes);
      }
      run.losses.push_back(bits_of(loss));
    }
    if (step >= kWarm) run.peak = std::max(run.peak, memory_stats().peak - base);
  }
  run.plans = engine_stats().plans - before.plans;
  run.kernels = engine_stats().kernels - before.kernels;
  for (const Parameter& p : params.all()) run.weights.push_back(bits_of(p.tensor));
  return run;
}
}  // namespace

TEST_CASE("ten lazy steps of training are ten eager ones, bit for bit, by one plan and in no more memory") {
  const GptConfig plain{.vocab_size = 65, .context = 32, .layers = 3, .heads = 4, .width = 128, .dropout = 0.1};
  GptConfig modern = modernised(plain);
  modern.kv_heads = 1, modern.tied_head = false;
  const std::vector<std::pair<GptConfig, ForwardOptions>> cases{{plain, {}},
                                                                {modern, {}},
                                                                {plain, {.compute = DType::bf16}},
                                                                {plain, {.recompute = true}},
                                                                {modern, {.compute = DType::bf16, .recompute = true}}};
  for (const auto& [config, how] : in_turns(cases)) {
    CAPTURE_ALL(name_of(config.norm), bool(how.compute), how.recompute);
    const LazyRun eager = train(config, false, how), lazy = train(config, true, how);
    CHECK(eager.losses == lazy.losses);
    CHECK(eager.weights == lazy.weights);
    CHECK(lazy.plans == 0);
    CHECK(lazy.kernels <= eager.kernels);
    CHECK(lazy.arena <= lazy.live + lazy.live / 20);
    CHECK(lazy.peak - lazy.arena + lazy.live <=
          eager.peak + eager.peak / 1000);  // tensors begin at multiples of 64 bytes
  }
}

TEST_CASE("ten steps that compute cheap ops again are ten that keep them, bit for bit, in less memory") {
  GptConfig plain{.vocab_size = 65, .context = 128, .layers = 6, .heads = 2, .width = 64, .bias = true, .dropout = 0.1};
  GptConfig modern = modernised(plain);
  modern.bias = false;
  for (const GptConfig& config : {plain, modern})
    for (const DType compute : {DType::f32, DType::bf16}) {
      CAPTURE_ALL(name_of(config.norm), name_of(compute));
      const ForwardOptions how{.compute = compute};
      const LazyRun kept = train(config, false, how), eager = train(config, false, how, true);
      const LazyRun planned = train(config, true, how), lazy = train(config, true, how, true);
      for (const LazyRun* r : {&eager, &lazy}) {
        CHECK(r->losses == kept.losses);
        CHECK(r->weights == kept.weights);
      }
      CHECK(lazy.plans == 0);
      CHECK(eager.kernels > kept.kernels);
      CHECK(lazy.kernels > planned.kernels);
      CHECK(double(eager.peak) <= 0.8 * double(kept.peak));
      CHECK(double(lazy.peak) <= 0.8 * double(planned.peak));
      CHECK(double(lazy.live) <= 0.8 * double(planned.live));
    }
}
