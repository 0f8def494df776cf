// The models of models/examples learn, equally in all modes.
#include <tapegrad/models/examples/moe.h>
#include <tapegrad/models/examples/vit.h>
#include <tapegrad/models/tools/memory_plan.h>

#include "support/small_run.h"

using namespace tg;

namespace {

enum class Way { eager, lazy, compiled };

// Losses and weights after steps of AdamW.
template <class MakeModel, class Next> std::vector<double> trained(Way way, MakeModel make_model, Next next) {
  const Params params(Device(), 3);
  const Model model = make_model(params);
  AdamW optimizer(params.trainable(), {.lr = 3e-3});
  Rng data{5}, dropout;
  const auto step = [&](Inputs in) {
    const Tensor loss = model.loss({in[0], in[1]}, {.rng = &dropout});
    optimizer.step(backward(loss), {.clip_norm = 1});
    return std::vector{loss.detach()};
  };
  const Compiled compiled = tg::compile(step, {.generators = {&dropout}});
  std::vector<double> all;
  for (int i = 0; i < 6; ++i) {
    const Batch b = next(data);
    const std::vector<Tensor> in{b.inputs, b.targets};
    const ScopeIf<LazyScope> lazy(way == Way::lazy);
    all.push_back((way == Way::compiled ? compiled(in) : step(in))[0].template item<double>());
  }
  for (const Parameter& p : params.all())
    for (const double x : p.tensor.to_vector<double>()) all.push_back(x);
  if (way == Way::compiled) CHECK(compiled.stats().replays == 5);
  return all;
}
template <class MakeModel, class Next> void same_all_ways(MakeModel make_model, Next next) {
  const auto eager = trained(Way::eager, make_model, next);
  CHECK(trained(Way::lazy, make_model, next) == eager);
  CHECK(trained(Way::compiled, make_model, next) == eager);
}
BatchSource rhymes(const MoeConfig& c) { return token_batches(bytes_of(rhyme()).split(0.9), 4, c.context); }

}  // namespace

TEST_CASE("examples: a mixture of experts learns, top-1 and top-2") {
  for (const int64_t k : {1, 2}) {
    CAPTURE(k);
    const MoeConfig c{.width = 32, .top_k = k};
    const Params params(Device(), 1);
    const MoeDecoder model(params, c);
    Trainer trainer(model, params, rhymes(c), {.max_steps = 120, .lr = 5e-3, .warmup = 10});
    std::vector<StepRecord> all = rest_of(trainer);
    CHECK(all[0].loss > 5);
    CHECK(*all.back().val_loss < 0.6);  // a guess by frequencies gives 2.7
    // Near 1, its minimum, the load-balancing loss says that all experts are used.
    Tensor balance;
    model.logits((*rhymes(c).validation(0)).inputs, balance);
    CHECK(balance.item<double>() / double(c.layers) < 1.5);
  }
}
TEST_CASE("examples: a token without room passes by, and an expert without tokens trains on") {
  const MoeConfig c{.layers = 1, .width = 16, .experts = 8, .room = 0.5};
  const Params params(Device(), 1);
  const MoeDecoder model(params, c);
  AdamW optimizer(params.trainable(), {});
  const Tensor tokens = tensor<int64_t>({7, 7, 7, 7}, {1, 4});  // one expert gets tokens and has room for one
  const GradMap grads = backward(model.loss({tokens, tokens}, {}));
  int64_t reached = 0;
  for (const Parameter& p : params.all())
    if (p.name.find("mlps") != std::string::npos) reached += max(abs(grads[p.tensor])).item<double>() > 0;
  CHECK(reached == 2);  // fc and proj of one expert
  optimizer.step(grads);
}
TEST_CASE("examples: a mixture of experts is the same eager, lazy and compiled") {
  for (const int64_t k : {1, 2}) {
    const MoeConfig c{.layers = 2, .width = 16, .top_k = k};
    same_all_ways([&](const Params& p) { return MoeDecoder(p, c); }, [&](Rng& rng) { return rhymes(c).next(rng); });
  }
}
TEST_CASE("examples: a mixture of experts plans its memory, is saved and loaded, and generates") {
  const MoeConfig c{.layers = 1, .width = 16, .top_k = 2};
  const TrainConfig train{.batch = 4, .max_steps = 1, .val_fraction = 0};
  const auto batch = [&] { return Batch{zeros({4, c.context}, DType::i32), zeros({4, c.context}, DType::i32)}; };
  const MemoryPlan plan = plan_memory([&](const Params& p) { return MoeDecoder(p, c); }, batch, train);
  reset_peak();
  const int64_t before = memory_stats().live;
  const Params params(Device(), train.seed);
  const MoeDecoder model(params, c);
  Trainer trainer(model, params, bytes_of(rhyme()), train);
  CHECK(trainer.step().peak_bytes - before == plan.peak);
  CHECK(plan.parameters == params.numel());
  Folder folder;
  save_model(folder.path, model, params);
  const Loaded<MoeDecoder> loaded = load_model<MoeDecoder>(folder.path);
  CHECK(loaded.model.config().top_k == 2);
  const std::vector<int64_t> prompt{1, 2, 3};
  const auto text = generate(model, prompt, 40, {.seed = 3});  // longer than its context
  CHECK(text.size() == 40);
  CHECK(generate(loaded.model, prompt, 40, {.seed = 3}) == text);
  CHECK_SAYS(load_model(folder.path), "has no 'kv_heads'");
}

TEST_CASE("examples: a vision transformer learns, and is the same eager, lazy and compiled") {
  const auto next = [](Rng& rng) { return stripes(rng, 16, 16); };
  const Params params(Device(), 1);
  const Vit model(params, {});
  Trainer trainer(model, params, {next}, {.max_steps = 120, .lr = 3e-3, .warmup = 10});
  const auto all = rest_of(trainer);
  CHECK(all[0].loss > 1.2);
  Rng fresh{77};
  const Batch test = stripes(fresh, 200, 16);
  CHECK(accuracy(model.forward(test.inputs), test.targets).item<double>() > 0.95);
  same_all_ways([](const Params& p) { return Vit(p, {}); }, next);
}
