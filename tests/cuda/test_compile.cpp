// compile() on Device::cuda(): steps that are replayed give the bits of steps that are emitted, and take memory once.
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>

#include "support/helpers.h"

using namespace tg;

TEST_CASE("compile: steps of a GPT, with dropout and a changing rate, are those of eager mode bit for bit") {
  const GptConfig config{.vocab_size = 11, .context = 6, .layers = 1, .heads = 2, .width = 8, .dropout = 0.2};
  const auto train = [&](bool compiled) {
    const Params params(Device::cuda(), 5);
    const Gpt model(params, config);
    AdamW optimiser(params.trainable(), {.lr = 1e-3});
    Rng noise{4}, data{7};
    const TensorFunction step = [&](Inputs x) {
      const Tensor loss = cross_entropy(model.forward(x[0], {.rng = &noise}), x[1]);
      optimiser.step(backward(loss), {.clip_norm = 1});
      return std::vector<Tensor>{loss.detach()};
    };
    const Compiled fast = compile(step, {.generators = {&noise}});
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
    }
    return r;
  };
  CHECK(train(true) == train(false));
}
TEST_CASE("compile: a step that is replayed keeps its memory") {
  Tensor w = random({64, 64}, 1).to(Device::cuda());
  const Compiled step = compile([&](Inputs x) {
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
    const Params params(Device::cuda(), 5);
    const Gpt model(params, {.vocab_size = 11,
                             .context = 9,
                             .layers = 2,
                             .heads = 2,
                             .kv_heads = 1,
                             .width = 8,
                             .positions = positions,
                             .init_std = 0.3});
    KvCache cache = model.fixed_cache(2, 8), eager = model.fixed_cache(2, 8);
    const Compiled step = compile([&](Inputs x) { return std::vector{model.forward(x[0], {.cache = &cache})}; });
    const auto ids = [](int64_t a, int64_t b) { return tensor<int64_t>({a, b}, {2}).to(Device::cuda()); };
    const auto tokens = [&](int64_t i) { return reshape(ids(i, 10 - i), {2, 1}); };
    for (KvCache* c : {&cache, &eager}) c->set_lengths(ids(0, 2));
    for (int64_t i = 0; i < 6; ++i)
      CHECK(bits_of(step({tokens(i)})[0]) == bits_of(model.forward(tokens(i), {.cache = &eager})));
    CHECK(values<int64_t>(cache.lengths()) == std::vector<int64_t>{6, 8});
    CHECK(step.stats().traces == 1);
    CHECK(step.stats().graph_launches == 4);
    CHECK(step.stats().why_no_graph == "");
    CHECK(has(error_of([&] { values(step({tokens(1)})[0]); }), "[slice_update] start 8 at position 1"));
    for (KvCache* c : {&cache, &eager}) c->set_lengths(ids(6, 3));  // what was held is as it was
    CHECK(bits_of(step({tokens(7)})[0]) == bits_of(model.forward(tokens(7), {.cache = &eager})));
  }
}
