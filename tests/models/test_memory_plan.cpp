// plan_memory() against the allocator's counters in real training; dry runs.
#include <tapegrad/core/node.h>
#include <tapegrad/tools.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "support/small_run.h"

namespace tg {
namespace {

GptConfig small_model() {
  return {.vocab_size = 256, .context = 16, .layers = 2, .heads = 4, .width = 32, .dropout = 0.1};
}
TrainConfig short_run() {
  TrainConfig c = tiny_train();
  c.max_steps = 2, c.eval_every = 1;
  return c;
}
template <class F> int64_t peak_of(F f) {
  reset_peak();
  const int64_t before = memory_stats().live;
  f();
  return memory_stats().peak - before;
}
void check_plan(const GptConfig& g, const TrainConfig& c) {
  CAPTURE_ALL(to_json(g), to_json(c));
  const MemoryPlan plan = plan_memory(g, c);
  int64_t parameters = 0, reported = 0;
  const int64_t before = memory_stats().live;
  const int64_t measured = peak_of([&] {
    Run run(c, g);
    parameters = run.params.numel();
    while (!run.trainer.done()) reported = run.trainer.step().peak_bytes;
  });
  CHECK(measured == reported - before);
  CHECK(double(plan.peak) == doctest::Approx(double(measured)).epsilon(0.03));
  CHECK(plan.peak == measured);  // nothing is left out on the CPU
  CHECK(plan.parameters == parameters);
  CHECK(plan.weights == 4 * parameters);
  if (c.dtype == DType::bf16 && c.accumulate == 1) {  // matrices, except a tied table
    CHECK(plan.gradients > 2 * parameters);
    CHECK(plan.gradients < 4 * parameters);
  } else {
    CHECK(plan.gradients == 4 * parameters);
  }
  if (c.optimizer == OptimizerKind::adamw) CHECK(plan.moments == (c.moments == DType::bf16 ? 4 : 8) * parameters);
  if (c.optimizer == OptimizerKind::sgd) CHECK(plan.moments == (c.momentum > 0 ? 4 : 0) * parameters);
  if (c.optimizer == OptimizerKind::muon) CHECK(plan.moments < 8 * parameters);
  CHECK(plan.activations > 0);
  CHECK(plan.peak > plan.weights + plan.moments + std::max(plan.gradients, plan.activations));
  CHECK(plan.gradients_at_peak <= plan.gradients);
}

}  // namespace

TEST_CASE("memory plan: what a step takes, of all variants in all modes") {
  std::vector<GptConfig> models(8, small_model());
  models[1].norm = NormKind::rms_norm;
  models[2].positions = Positions::rope;
  models[3].activation = Activation::swiglu;
  models[4].tied_head = false;
  models[5].dropout = 0;
  models[6].bias = true, models[6].kv_heads = 2, models[6].activation = Activation::silu;
  models[7].norm = NormKind::rms_norm, models[7].positions = Positions::rope, models[7].tied_head = false;
  models[7].activation = Activation::swiglu, models[7].ff_width = 80, models[7].layers = 5, models[7].dropout = 0;
  for (const GptConfig& g : models)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::block}) {
        TrainConfig c = short_run();
        c.dtype = dtype, c.recompute = recompute;
        check_plan(g, c);
      }
}
TEST_CASE("memory plan: a step with a frozen head, or one that recomputes, keeps no logits") {
  GptConfig g = small_model();
  g.vocab_size = 65536;
  TrainConfig c = short_run();
  const LoraConfig lora{.rank = 2};
  const int64_t logits = 4 * c.batch * g.context * g.vocab_size;
  CHECK(plan_memory(g, c).activations > logits);
  CHECK(plan_memory(g, c, Device::cpu(), &lora).activations < logits / 8);
  for (const Recompute recompute : {Recompute::cheap, Recompute::block}) {
    c.recompute = recompute;
    CHECK(plan_memory(g, c).activations < logits / 8);
  }
}
TEST_CASE("memory plan: every optimiser") {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon})
    for (const bool swiglu : {false, true}) {
      GptConfig g = small_model();
      if (swiglu) g.activation = Activation::swiglu, g.kv_heads = 2, g.tied_head = false;
      TrainConfig c = short_run();
      c.optimizer = kind;
      check_plan(g, c);
      c.clip_norm = 0, c.momentum = 0, c.nesterov = false, c.batch = 1;  // the optimiser's part is large
      if (kind != OptimizerKind::sgd) c.moments = DType::bf16;
      check_plan(g, c);
      if (kind != OptimizerKind::adamw) continue;
      c.dtype = DType::bf16, c.split_weights = true;
      check_plan(g, c);
    }
}
TEST_CASE("memory plan: batches, micro-batches, contexts and clipping") {
  for (const int64_t accumulate : {1, 2, 3, 20}) {
    TrainConfig c = short_run();
    c.accumulate = accumulate;
    check_plan(small_model(), c);
    c.dtype = DType::bf16;  // accumulated over micro-batches in f32
    check_plan(small_model(), c);
  }
  TrainConfig c = short_run();
  c.batch = 1, c.clip_norm = 0;
  check_plan(small_model(), c);
  c.batch = 25;
  GptConfig g = small_model();
  g.context = 40;
  check_plan(g, c);
}
TEST_CASE("memory plan: the peak is where activations or gradients make it") {
  TrainConfig c = short_run();
  c.batch = 64;
  const MemoryPlan begin = plan_memory(small_model(), c);  // all activations, and at most the first gradients
  CHECK(begin.activations > 10 * begin.gradients);
  CHECK(begin.gradients_at_peak < begin.gradients / 10);
  GptConfig wide = small_model();
  wide.width = 256;
  c.batch = 1;
  const MemoryPlan end = plan_memory(wide, c);
  CHECK(end.activations < end.gradients / 2);
  CHECK(end.gradients_at_peak > end.gradients / 2);
  c.optimizer = OptimizerKind::muon;  // works on copies of all its matrices
  for (const int64_t accumulate : {1, 2, 3}) {
    c.accumulate = accumulate;
    const MemoryPlan update = plan_memory(wide, c);
    CHECK(update.gradients_at_peak == update.gradients);
  }
}
TEST_CASE("memory plan: adapters over a frozen model, in bf16 too") {
  const GptConfig g = small_model();
  const LoraConfig adapters{.targets = {"*.attn.qkv", "*.mlp.*"}, .rank = 4, .dropout = 0.1};
  for (const auto& [recompute, weights] :
       {std::pair(Recompute::none, DType::f32), {Recompute::block, DType::f32}, {Recompute::none, DType::bf16}}) {
    TrainConfig c = short_run();
    c.recompute = recompute, c.dtype = weights;
    const MemoryPlan plan = plan_memory(g, c, {}, &adapters, weights);
    int64_t trained = 0;
    const int64_t measured = peak_of([&] {
      auto [params, model] = new_gpt(g, Params(Device::cpu(), c.seed, weights));
      const Lora lora = apply_lora(model, params, adapters);
      trained = lora.params().numel();
      Trainer trainer(model, lora.params(), bytes_of(rhyme()), c);
      trainer.run();
      CHECK(plan.parameters == params.numel() + trained);
    });
    CHECK(plan.peak == measured);
    CHECK(plan.gradients == (weights == DType::bf16 ? 2 : 4) * trained);
    CHECK(plan.moments == 8 * trained);
  }
}

TEST_CASE("memory plan: 3.4 billion parameters in seconds and next to no memory") {
  GptConfig g = model_preset("cs336-2.7b");
  g.context = 512;
  TrainConfig c;
  c.batch = 4;
  const auto resident = [] {
    int64_t all = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> all >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  const int64_t before = resident(), live = memory_stats().live;
  reset_peak();
  const auto start = std::chrono::steady_clock::now();
  const MemoryPlan plan = plan_memory(g, c);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(resident() - before < 32 << 20);
  CHECK(memory_stats().peak == live);
  CHECK(plan.parameters == 3'406'809'600);
  CHECK(plan.weights == 13'627'238'400);
  CHECK(plan.gradients == plan.weights);
  CHECK(plan.moments == 2 * plan.weights);
  CHECK(plan.peak > 4 * plan.weights);
  CHECK(plan.peak < 6 * plan.weights);
}

TEST_CASE("memory plan: bad input") {
  const auto with = [](auto change) {
    return error_of([&] {
      GptConfig g = small_model();
      TrainConfig c = short_run();
      change(g, c);
      plan_memory(g, c);
    });
  };
  CHECK_HAS(with([](auto&, auto& c) { c.batch = 0; }), "[train] batch is 0. It must be at least 1.");
  CHECK_HAS(with([](auto&, auto& c) { c.dtype = DType::f16; }), "[train] dtype is f16. It must be f32 or bf16.");
  CHECK_HAS(with([](auto& g, auto&) { g.vocab_size = 0; }), "[gpt_config] vocab_size is 0. It must be 1 or more.");
  CHECK_HAS(with([](auto&, auto& c) { c.batch = 100'000'000'000'000; }), "[dry_run] ",
            "together more than 2^62, which no device has. Make sizes smaller.");
  CHECK_HAS(with([](auto&, auto& c) { c.batch = c.accumulate = int64_t(1) << 53; }), "elements");
  LoraConfig adapters{.targets = {"*.nothing"}};
  CHECK_SAYS(plan_memory(small_model(), short_run(), {}, &adapters), "*.nothing");
  if (!has_device(Device::cuda()))
    CHECK_SAYS(plan_memory(small_model(), short_run(), Device::cuda()), " was asked for");
}

TEST_CASE("dry run: a step of an optimiser is not counted") {
  const Params params({}, 1);
  const Tensor w = params.get("w", {1}, Init::constant(2));
  AdamW adamw(params.trainable());
  dry_run([&] { adamw.step(backward(sum(w * w))); });
  CHECK(adamw.steps() == 0);
}
TEST_CASE("dry run: shapes, counters and zeros, and no kernels") {
  const Tensor outside = full({4}, 2.0);
  const uint64_t kernels = engine_stats().kernels;
  const int64_t live = memory_stats().live;
  dry_run([&] {
    CHECK(memory_stats().live == 0);
    const Tensor w = ones({1000, 1000}).requires_grad_();
    const Tensor x = tensor(std::vector<float>(3000, 7.f), {3, 1000});
    CHECK(memory_stats().live == 4'012'000);
    const Tensor loss = sum(matmul(x, w));
    CHECK(loss.item<float>() == 0);
    CHECK(x.to_vector<float>() == std::vector<float>(3000));
    CHECK(backward(loss)[w].shape() == w.shape());
    CHECK((outside + outside).to_vector<float>() == std::vector<float>(4));
    CHECK_SAYS(x.data<float>(), "a dry run computes no elements");
    CHECK_SAYS(matmul(w, x), "[matmul]");
    CHECK(memory_stats().peak > 8'012'000);
    dry_run([] { CHECK(memory_stats().peak == 0); });
    CHECK(memory_stats().peak > 8'012'000);
    {
      LazyScope lazy;
      const Tensor y = exp(tanh(x) * 2.0) + 1.0;
      eval({y});
      CHECK(y.materialized());
    }
    const Compiled f = compile([](Inputs in) { return std::vector<Tensor>{in[0] * 2.0}; });
    CHECK(f({x})[0].shape() == x.shape());
    CHECK(sum(f({x})[0]).item<float>() == 0);
  });
  CHECK(engine_stats().kernels == kernels);
  CHECK(memory_stats().live == live);
  CHECK(outside.to_vector<float>() == std::vector<float>(4, 2.f));
}
TEST_CASE("dry run: ends with an Error as without one, and lets no tensor out") {
  CHECK_SAYS(dry_run([] { throw Error(Error::Kind::value, "[mine] no."); }), "[mine] no.");
  CHECK(full({2}, 3.0).to_vector<float>() == std::vector<float>(2, 3.f));
  Tensor out;
  CHECK_SAYS(dry_run([&] { out = zeros({5}); }), "[dry_run] 1 tensors outlive the function");
  out = {};  // frees a tensor without memory
  Tensor view;
  CHECK_SAYS(dry_run([&] {
               view = zeros({5});
               throw Error(Error::Kind::value, "[mine] no.");
             }),
             "[mine] no.");
}

}  // namespace tg
