// TrainConfig::compile: the bits of eager steps; a step that is not finite changes nothing.
#include <tapegrad/tools.h>

#include <cmath>

#include "support/small_run.h"

using namespace tg;
namespace {
TrainConfig short_train(bool compile) {
  TrainConfig c = tiny_train();
  c.max_steps = 10, c.eval_every = 4, c.compile = compile;
  return c;
}
// Each batch ignores another number of targets; with `whole`, every third ignores all.
BatchSource ignoring(const TokenData& data, bool whole) {
  return {.next = [=, source = token_batches(data.split(1), 2, 8, false), n = std::make_shared<int>(0)](Rng& rng) {
    Batch b = source.next(rng);
    const bool all = whole && ++*n % 3 == 0;
    std::fill_n(b.targets.mutable_data<int32_t>(), all ? 16 : int64_t(rng.below(15)), int32_t(Batch::kIgnoreIndex));
    return b;
  }};
}
// sum(w x) / n + extra: a non-finite loss with finite gradients.
struct Line {
  Tensor w, extra;
  explicit Line(const Params& p) : w(p.get("w", {3}, Init::normal(1))), extra(tensor<float>({0}, {})) {}
  Tensor forward(const Tensor& x, const ForwardOptions&) const { return x * w; }
  Tensor loss(const Batch& b, const ForwardOptions& o) const { return mean(forward(b.inputs, o)) + extra; }
};
}  // namespace

TEST_CASE("compiled steps: weights, moments, generators and records are those of steps op by op") {
  TrainConfig c = short_train(false);
  GptConfig g = tiny_model();
  SUBCASE("plain") {}
  SUBCASE("without clipping") { c.clip_norm = 0; }
  SUBCASE("clipped hard") { c.clip_norm = 0.1; }
  SUBCASE("bf16") { c.dtype = DType::bf16; }
  SUBCASE("cheap ops recomputed") { c.recompute = Recompute::cheap; }
  SUBCASE("blocks recomputed") { c.recompute = Recompute::block; }
  SUBCASE("blocks recomputed, in bf16") { c.recompute = Recompute::block, c.dtype = DType::bf16; }
  SUBCASE("three micro-batches") { c.accumulate = 3; }
  SUBCASE("two micro-batches in bf16, recomputed") {
    c.accumulate = 2, c.dtype = DType::bf16, c.recompute = Recompute::block;
  }
  SUBCASE("SGD") { c.optimizer = OptimizerKind::sgd, c.momentum = 0, c.nesterov = false; }
  SUBCASE("SGD with momentum") { c.optimizer = OptimizerKind::sgd, c.clip_norm = 0; }
  SUBCASE("Muon") { c.optimizer = OptimizerKind::muon; }
  SUBCASE("Muon without clipping") { c.optimizer = OptimizerKind::muon, c.clip_norm = 0; }
  SUBCASE("products of 8 bits") { c.linear = LinearKind::switchback; }
  SUBCASE("modern layers") {
    g.positions = Positions::rope, g.norm = NormKind::rms_norm, g.activation = Activation::swiglu;
  }
  Run plain(c, g);
  CHECK(plain.trainer.compiled() == nullptr);
  c.compile = true;
  Run compiled(c, g);
  CHECK(numbers_of(rest_of(plain.trainer)) == numbers_of(rest_of(compiled.trainer)));
  CHECK(snapshot(plain.trainer.state()) == snapshot(compiled.trainer.state()));
  REQUIRE(compiled.trainer.compiled());
  CHECK(compiled.trainer.compiled()->traces == 1);
  CHECK(compiled.trainer.compiled()->replays == 9);
}

TEST_CASE("compiled steps: a run that goes on from any step is the run that never stopped, compiled or not") {
  const TrainConfig plain = short_train(false), compiled = short_train(true);
  Run whole(plain);
  const auto all = numbers_of(rest_of(whole.trainer));
  for (const auto& [first, second] :
       {std::pair(plain, compiled), std::pair(compiled, compiled), std::pair(compiled, plain)}) {
    Run begun(first), rest(second);
    std::vector<StepRecord> records;
    for (int i = 0; i < 5; ++i) records.push_back(begun.trainer.step());
    rest.trainer.load_state(begun.trainer.state());
    for (const StepRecord& r : rest_of(rest.trainer)) records.push_back(r);
    CHECK(numbers_of(records) == all);
    CHECK(snapshot(rest.trainer.state()) == snapshot(whole.trainer.state()));
  }
  Run back(compiled);  // a state from before these steps
  const TrainerState start = back.trainer.state();
  for (int i = 0; i < 4; ++i) back.trainer.step();
  back.trainer.load_state(start);
  CHECK(numbers_of(rest_of(back.trainer)) == all);
  CHECK(back.trainer.compiled()->traces == 1);
}

TEST_CASE("compiled steps: micro-batches weigh by their kept targets, whose numbers change without a new trace") {
  for (const bool whole : {false, true}) {
    const auto run = [&](bool compile) {
      TrainConfig c = short_train(compile);
      c.accumulate = 3;
      GptConfig g = tiny_model();
      const auto [params, model] = new_gpt(g, Params({}, c.seed));
      Trainer trainer(model, params, ignoring(bytes_of(rhyme()), whole), c);
      const auto numbers = numbers_of(rest_of(trainer));
      if (compile) CHECK(trainer.compiled()->traces == 1);
      return std::pair(numbers, snapshot(trainer.state()));
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("compiled steps: a batch of another shape is a trace of its own") {
  const auto run = [](bool compile) {
    const TrainConfig c = short_train(compile);
    const auto [params, model] = new_gpt(tiny_model(), Params({}, c.seed));
    const auto full = token_batches(bytes_of(rhyme()).split(1), 4, 16, false),
               rest = token_batches(bytes_of(rhyme()).split(1), 3, 9, false);
    Trainer trainer(model, params, {.next = [&, n = 0](Rng& rng) mutable { return (++n % 4 ? full : rest).next(rng); }},
                    c);
    const auto numbers = numbers_of(rest_of(trainer));
    if (compile) {
      CHECK(trainer.compiled()->traces == 2);
      CHECK(trainer.compiled()->replays == 8);
    }
    return std::pair(numbers, snapshot(trainer.state()));
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("compiled steps: what is not finite is explained, in the first step and in a replay, and changes nothing") {
  TrainConfig c = short_train(true);
  c.val_fraction = 0;
  SUBCASE("AdamW") {}
  SUBCASE("AdamW without clipping") { c.clip_norm = 0; }
  SUBCASE("SGD") { c.optimizer = OptimizerKind::sgd, c.momentum = 0, c.nesterov = false; }
  SUBCASE("SGD with momentum") { c.optimizer = OptimizerKind::sgd; }
  SUBCASE("Muon") { c.optimizer = OptimizerKind::muon; }
  SUBCASE("Muon without clipping") { c.optimizer = OptimizerKind::muon, c.clip_norm = 0; }
  for (const int before : {0, 1, 4}) {
    Run run(c), other(c);
    Tensor weight = run.params.at("h.0.mlp.fc").shared().get("weight", {128, 32}, Init::normal(1));
    Tensor scale = tensor<float>({1}, {});
    weight.on_grad([&](const Tensor& g) {
      const NameScope here("hook");
      return g * scale * scale;
    });
    for (int i = 0; i < before; ++i) run.trainer.step(), other.trainer.step();
    scale.assign(tensor<float>({1e30f}, {}));
    const Snapshot was = snapshot(run.trainer.state());
    for (int i = 0; i < 2; ++i) {
      CHECK_SAYS(run.trainer.step(), fmt::format("[train] the gradient's norm of step {} is inf", before + 1),
                 "every op checked, this is where it began:\n[mul]", "\n    in hook");
      CHECK(snapshot(run.trainer.state()) == was);
    }
    scale.assign(tensor<float>({1}, {}));
    CHECK(numbers_of(rest_of(run.trainer)) == numbers_of(rest_of(other.trainer)));
    CHECK(snapshot(run.trainer.state()) == snapshot(other.trainer.state()));
  }
}

TEST_CASE("compiled steps: a loss that is not finite holds the update, whatever its gradients are") {
  TrainConfig c = short_train(true);
  c.clip_norm = 0;
  const Params params({}, 1);
  const Line model(params);
  const BatchSource source{.next = [](Rng& rng) { return Batch{rand({2, 3}, rng), zeros({2}, DType::i64)}; }};
  Trainer trainer(model, params, source, c);
  for (int i = 0; i < 3; ++i) trainer.step();
  for (const float bad : {INFINITY, NAN}) {
    Tensor(model.extra).assign(tensor<float>({bad}, {}));
    const Snapshot was = snapshot(trainer.state());
    CHECK_SAYS(trainer.step(), "[train] the loss of step 4 is");
    CHECK(snapshot(trainer.state()) == was);
  }
  Tensor(model.extra).assign(tensor<float>({0}, {}));
  CHECK(trainer.step().step == 4);
}

TEST_CASE("compiled steps: a model that reads values on the host is an Error that says so, and changes nothing") {
  struct Reads {
    Line line;
    Tensor forward(const Tensor& x, const ForwardOptions& o) const { return line.forward(x, o); }
    Tensor loss(const Batch& b, const ForwardOptions& o) const {
      const Tensor y = line.loss(b, o);
      return y.item<float>() > 0 ? y : -y;
    }
  };
  const Params params({}, 1);
  const BatchSource source{.next = [](Rng& rng) { return Batch{rand({2, 3}, rng), zeros({2}, DType::i64)}; }};
  Trainer trainer(Reads{Line(params)}, params, source, short_train(true));
  const Snapshot was = snapshot(trainer.state());
  CHECK_SAYS(trainer.step(), "[compile]");
  CHECK(snapshot(trainer.state()) == was);
}
