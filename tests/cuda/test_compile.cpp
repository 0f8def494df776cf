#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>

#include <limits>
#include <map>

#include "support/small_run.h"

using namespace tg;

TEST_CASE("compile: steps of a GPT, with dropout and a changing rate, are those of eager mode bit for bit") {
  const GptConfig config{.vocab_size = 11, .context = 6, .layers = 1, .heads = 2, .width = 8, .dropout = 0.2};
  const auto train = [&](bool compiled) {
    const auto [params, model] = new_gpt(config, Params(Device::cuda(), 5));
    AdamW optimiser(params.trainable(), {.lr = 1e-3});
    Rng noise{4}, data{7};
    const TensorFunction step = [&](Inputs x) {
      const Tensor loss = cross_entropy(model.forward(x[0], {.rng = &noise}), x[1]);
      optimiser.step(backward(loss), {.clip_norm = 1});
      return std::vector<Tensor>{loss.detach()};
    };
    const tg::Compiled fast = compile(step, {.generators = {&noise}});
    std::vector<std::vector<std::byte>> r;
    for (int i = 0; i < 8; ++i) {
      std::vector<int32_t> ids(2 * 6);
      for (int32_t& id : ids) id = int32_t(data.below(11));
      const Tensor x = tensor(ids, {2, 6}, Device::cuda());
      optimiser.set_lr(1e-3 / (1 + i));
      r.push_back(bits_of((compiled ? fast({x, x}) : step(std::vector<Tensor>{x, x}))[0]));
    }
    for (const Parameter& p : params.all()) r.push_back(bits_of(p.tensor));
    for (const auto& [name, t] : optimiser.state()) r.push_back(bits_of(t));
    if (compiled) {
      CHECK(fast.stats().replays == 7);
      CHECK(fast.stats().graph_launches == 6);
      CHECK(fast.stats().why_no_graph == "");
      CHECK(fast.stats().recorded_ops == fast.stats().ops);
    }
    return r;
  };
  CHECK(train(true) == train(false));
}
namespace {
std::map<std::string, std::vector<std::byte>> bits_of_state(const Trainer& t) { return snapshot(t.state()).tensors; }
struct CudaRun : Run {
  explicit CudaRun(const TrainConfig& c)
      : Run(c, {.vocab_size = 128, .context = 8, .layers = 1, .heads = 2, .width = 16, .dropout = 0.1}, rhyme(),
            Device::cuda()) {}
};
TrainConfig seven_steps() {
  TrainConfig c = tiny_train();
  c.batch = 2, c.max_steps = 7, c.eval_every = 0, c.val_fraction = 0;
  return c;
}
}  // namespace
TEST_CASE("compile: steps of a Trainer are recorded once, and each is one launch, whatever changes from step to step") {
  TrainConfig c = seven_steps();
  SUBCASE("AdamW, clipped, of two micro-batches") { c.accumulate = 2; }
  SUBCASE("SGD with momentum, in bf16") { c.optimizer = OptimizerKind::sgd, c.clip_norm = 0, c.dtype = DType::bf16; }
  SUBCASE("Muon") { c.optimizer = OptimizerKind::muon; }
  CudaRun plain(c);
  c.compile = true;
  CudaRun fast(c);
  const CompileStats& stats = *fast.trainer.compiled();
  std::vector<StepRecord> records;
  for (int i = 0; i < 4; ++i) records.push_back(fast.trainer.step());
  const uint64_t recorded = stats.recorded_ops;
  CHECK(recorded <= stats.ops + 2);
  for (const StepRecord& r : rest_of(fast.trainer)) records.push_back(r);
  CHECK(numbers_of(rest_of(plain.trainer)) == numbers_of(records));
  CHECK(bits_of_state(plain.trainer) == bits_of_state(fast.trainer));
  CHECK(stats.why_no_graph == "");
  CHECK(stats.traces == 1);
  CHECK(stats.graph_launches == 5);  // all from the third step on
  CHECK(stats.recorded_ops == recorded);
}
TEST_CASE("compile: a step on CUDA that is not finite changes nothing, and the run goes on") {
  TrainConfig c = seven_steps();
  c.compile = true;
  SUBCASE("AdamW") { c.clip_norm = 0; }
  SUBCASE("SGD with momentum") { c.optimizer = OptimizerKind::sgd; }
  SUBCASE("Muon") { c.optimizer = OptimizerKind::muon; }
  CudaRun run(c), other(c);
  const auto hook = [](CudaRun& r) {
    const Tensor scale = tensor<float>({1}, {}, Device::cuda());
    r.params.at("h.0.mlp.fc").shared().get("weight", {64, 16}, Init::normal(1)).on_grad([=](const Tensor& g) {
      return g * scale;
    });
    return scale;
  };
  const Tensor scale = hook(run), one = hook(other);
  for (int i = 0; i < 4; ++i) run.trainer.step();
  const auto before = bits_of_state(run.trainer);
  Tensor(scale).assign(tensor<float>({std::numeric_limits<float>::infinity()}, {}, Device::cuda()));
  CHECK_SAYS(run.trainer.step(), "[train] the gradient's norm of step 5 is ");
  CHECK(bits_of_state(run.trainer) == before);
  Tensor(scale).assign(one);
  run.trainer.run();
  other.trainer.run();
  CHECK(bits_of_state(run.trainer) == bits_of_state(other.trainer));
}
TEST_CASE("compile: a step of more tensors than a block has numbers for") {
  const auto train = [](bool compiled) {
    constexpr int kTensors = 1500;
    const Params params(Device::cuda(), 5);
    std::vector<Tensor> w;
    for (int i = 0; i < kTensors; ++i) w.push_back(params.get(fmt::format("w{}", i), {1}, Init::normal(1)));
    AdamW optimizer(params.trainable(), {.lr = 1e-2});
    const TensorFunction step = [&](Inputs) {
      const Tensor all = concat(w), loss = sum(all * all);
      optimizer.step(backward(loss));
      return std::vector<Tensor>{loss.detach()};
    };
    const tg::Compiled fast = compile(step);
    std::vector<std::vector<std::byte>> r;
    for (int i = 0; i < 5; ++i) {
      optimizer.set_lr(1e-2 / (1 + i));
      r.push_back(bits_of((compiled ? fast({}) : step({}))[0]));
    }
    r.push_back(bits_of(concat(w)));
    if (compiled) {
      CHECK(fast.stats().graph_launches == 3);
      CHECK(fast.stats().why_no_graph == "");
    }
    return r;
  };
  CHECK(train(true) == train(false));
}
TEST_CASE("compile: random tensors, and steps with folded gradients, are recorded once") {
  const auto train = [](bool compiled) {
    const Params params(Device::cuda(), 5);
    const Tensor w = params.get("w", {8, 8}, Init::normal(1)), b = params.get("b", {8}, Init::normal(1));
    AdamW optimizer(params.trainable(), {.lr = 1e-2});
    Rng noise{4};
    const TensorFunction step = [&](Inputs) {
      const Tensor x = randn({3, 8}, noise, 0, 1, DType::f32, Device::cuda()) +
                       rand({3, 8}, noise, 0, 1, DType::f32, Device::cuda());
      const Tensor y = matmul(x, w) + b, loss = mean(y * y);
      optimizer.backward_and_step(loss, {.clip_norm = 1});
      return std::vector<Tensor>{loss.detach()};
    };
    const tg::Compiled fast = compile(step, {.generators = {&noise}});
    std::vector<std::vector<std::byte>> r;
    for (int i = 0; i < 6; ++i) {
      optimizer.set_lr(1e-2 / (1 + i));
      r.push_back(bits_of((compiled ? fast({}) : step({}))[0]));
    }
    r.push_back(bits_of(w)), r.push_back(bits_of(b));
    if (compiled) {
      CHECK(fast.stats().graph_launches == 4);
      CHECK(fast.stats().recorded_ops == fast.stats().ops);
    }
    return r;
  };
  CHECK(train(true) == train(false));
}
TEST_CASE("compile: a step that is replayed keeps its memory") {
  Tensor w = random({64, 64}, 1).to(Device::cuda());
  const tg::Compiled step = compile([&](Inputs x) {
    const Tensor y = matmul(x[0], w);
    w.assign(w - matmul(x[0], y, {.trans_a = true}) * 1e-3);
    return std::vector<Tensor>{sum(y)};
  });
  const Tensor x = random({8, 64}, 2).to(Device::cuda());
  step({x});
  const int64_t live = memory_stats(Device::cuda()).live;
  for (int i = 0; i < 3; ++i) {
    const Tensor before = w.to(Device::cpu());
    CHECK(distance(step({x})[0], sum(matmul(x.to(Device::cpu()), before))) <= 1e-5);
  }
  CHECK(memory_stats(Device::cuda()).live == live);
}
TEST_CASE("compile: decoding with a fixed cache is one graph, with the bits of eager mode, and says when it is full") {
  NoGradScope off;
  for (const Positions positions : {Positions::learned, Positions::rope}) {
    const auto [params, model] = new_gpt({.vocab_size = 11,
                                          .context = 9,
                                          .layers = 2,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .width = 8,
                                          .positions = positions,
                                          .init_std = 0.3},
                                         Params(Device::cuda(), 5));
    KvCache cache = model.make_cache(2, 8), eager = model.make_cache(2, 8);
    const tg::Compiled step = compile([&](Inputs x) { return std::vector{model.forward(x[0], {.cache = &cache})}; });
    const auto ids = [](int64_t a, int64_t b) { return tensor<int64_t>({a, b}, {2}).to(Device::cuda()); };
    const auto tokens = [&](int64_t i) { return reshape(ids(i, 10 - i), {2, 1}); };
    for (KvCache* c : {&cache, &eager}) c->set_lengths(ids(0, 2));
    for (int64_t i = 0; i < 6; ++i)
      CHECK(bits_of(step({tokens(i)})[0]) == bits_of(model.forward(tokens(i), {.cache = &eager})));
    CHECK(values<int64_t>(cache.lengths()) == std::vector<int64_t>{6, 8});
    CHECK(step.stats().traces == 1);
    CHECK(step.stats().graph_launches == 4);
    CHECK(step.stats().why_no_graph == "");
    CHECK_SAYS(values(step({tokens(1)})[0]), "[slice_update] start 8 at position 1");
    for (KvCache* c : {&cache, &eager}) c->set_lengths(ids(6, 3));
    CHECK(bits_of(step({tokens(7)})[0]) == bits_of(model.forward(tokens(7), {.cache = &eager})));
  }
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("compile: squares of early gradients are summed on the other branch, before backward ends") {
  std::vector<Parameter> params;
  for (uint64_t i = 0; i < 4; ++i)
    params.push_back({fmt::format("w{}", i), random({512, 512}, i).to(Device::cuda()).requires_grad_()});
  AdamW optimizer(params, {.lr = 1e-3});
  const tg::Compiled step = compile([&](Inputs in) {
    Tensor y = in[0];
    for (const Parameter& p : params) y = tg::tanh(matmul(y, p.tensor) * 0.02);
    const GradMap grads = backward(sum(y * y));
    std::vector<Tensor> all;
    for (const Parameter& p : params) all.push_back(grads[p.tensor]);
    const Tensor norm = detail::norm_in_parts(all, 1 << 20);
    optimizer.step(grads, {.clip_norm = 1, .norm = norm});
    return std::vector<Tensor>{norm, global_norm(all)};
  });
  const Tensor x = random({4, 512}, 9).to(Device::cuda());
  for (int i = 0; i < 3; ++i) {
    const auto r = step({x});
    CHECK(bits_of(r[0]) == bits_of(r[1]));
  }
  Profiler profiler;
  step({x});
  Profile p = profiler.stop();
  std::ranges::sort(p.kernels, {}, &Profile::Kernel::begin);
  std::vector<Profile::Kernel> sums, products;
  for (const Profile::Kernel& k : p.kernels) {
    CHECK(k.in_graph);
    if (k.op == "square_sums") sums.push_back(k);
    if (k.op == "matmul") products.push_back(k);
  }
  REQUIRE(sums.size() == 5);
  for (int layer = 3; layer > 0; --layer) {
    CHECK(sums[size_t(3 - layer)].begin < products.back().begin);
    CHECK(sums[size_t(3 - layer)].track != products.back().track);
  }
}
#endif
