// Model: custom models, messages about missing members, custom loops with a checkpoint.
#include <tapegrad/tapegrad.h>

#include "support/small_run.h"

namespace own {

struct BagConfig {
  int64_t width = 8;
  double scale = 1;
  bool twice = false;
  std::string note = "a bag";
  tg::Activation activation = tg::Activation::relu;
};
template <class F> void visit_fields(BagConfig& c, F&& f) {
  f("width", c.width), f("scale", c.scale), f("twice", c.twice), f("note", c.note), f("activation", c.activation);
}
// The least: forward() of tokens alone.
struct Plain {
  tg::nn::Embedding table;
  tg::nn::Linear head;
  explicit Plain(const tg::Params& p, int64_t width = 8)
      : table(p.at("table"), 256, width), head(p.at("head"), width, 256) {}
  tg::Tensor forward(const tg::Tensor& tokens) const { return head.forward(table.forward(tokens)); }
};
// Everything that a model may have, except a cache.
struct Bag : Plain {
  static constexpr tg::ForwardSupport kSupport{.compute = true};
  BagConfig settings;
  Bag(const tg::Params& p, const BagConfig& c) : Plain(p, c.width), settings(c) {}
  tg::Tensor forward(const tg::Tensor& tokens, const tg::ForwardOptions& o) const {
    return head.forward(table.forward(tokens), o.compute, o.rng) * settings.scale;
  }
  const BagConfig& config() const { return settings; }
  int64_t context() const { return 16; }
  int64_t vocab_size() const { return 256; }
  std::vector<tg::NamedLinear> linears() { return {{"head", &head}}; }
};

}  // namespace own

using namespace tg;
using own::Bag;
using own::Plain;

TEST_CASE("model: an option that a model does not follow is refused, and what it lacks is named") {
  const Params params(Device(), 1);
  Model plain{Plain(params)};
  const Tensor tokens = tensor<int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(plain.forward(tokens).shape() == Shape{2, 3, 256});
  CHECK(bits_of(plain.forward(tokens, {.last_only = true})) == bits_of(slice(plain.forward(tokens), 1, 2, 3)));
  KvCache cache;
  CHECK_SAYS(plain.forward(tokens, {.cache = &cache}), "`cache`, which this model does not support");
  CHECK_SAYS(plain.forward(tokens, {.lengths = tokens}), "`lengths`, which this model");
  CHECK_SAYS(plain.loss({tokens, tokens}, {.compute = DType::bf16}), "Leave `compute` out; in a run");
  CHECK_SAYS(plain.forward(tokens, {.recompute = true}), "a RecomputeScope");
  CHECK_SAYS(plain.config(), "this model has no config(), with visit_fields(), which save_model()");
  CHECK_SAYS(apply_lora(plain, params, {.targets = {"*"}}), "no linears(), which apply_lora() needs");
  CHECK_SAYS(plain.make_cache(1, 1), "no make_cache()");
  CHECK_SAYS(Trainer(plain, params, bytes_of(rhyme()), tiny_train()), "the model has no context()");
  CHECK_SAYS(Trainer(plain, params, BatchSource{}, tiny_train()), "has no next()");
  TrainConfig c = tiny_train();
  c.recompute = Recompute::block;
  Trainer trainer(Bag(Params(), {}), params, bytes_of(rhyme()), c);
  CHECK_SAYS(trainer.step(), "`recompute`, which this model does not support");
  struct TwoLosses : Plain {
    using Plain::Plain;
    Tensor loss(const Batch& b, const ForwardOptions&) const { return forward(b.inputs); }
  };
  CHECK_SAYS(Model(TwoLosses(Params())).loss({tokens, tokens}), "[model] loss() returned");
  struct OffTape : Plain {
    using Plain::Plain;
    int64_t context() const { return 4; }
    Tensor loss(const Batch& b, const ForwardOptions&) const { return mean(forward(b.inputs)).detach(); }
  };
  Trainer off(OffTape(Params()), params, bytes_of(rhyme()), tiny_train());
  const std::string message = error_of([&] { off.step(); });
  CHECK_HAS(message, "[backward]");
  CHECK(!has(message, "called at"));  // no line of tapegrad
}

TEST_CASE("model: one of one's own trains, evaluates, takes adapters, is saved and loaded, and generates") {
  const Params params(Device(), 1);
  Bag bag(params, {.width = 16, .scale = 1.5, .twice = true, .note = "of \"tokens\"", .activation = Activation::silu});
  TrainConfig c = tiny_train();
  c.dtype = DType::bf16;
  Trainer trainer(bag, params, bytes_of(rhyme()), c);
  const auto all = rest_of(trainer);
  CHECK(*all.back().val_loss < 0.75 * all.front().loss);
  const ValidationLoss e =
      validation_loss(bag, [&](int64_t i) { return SequentialBatches(bytes_of(rhyme()).split(0.9).val, 4, 16).at(i); },
                      {.compute = DType::bf16});
  CHECK(e.loss == *all.back().val_loss);
  Folder folder;
  const ByteTokenizer bytes;
  const std::string saved = folder / "made/here";
  save_model(saved, bag, params, &bytes);
  const Loaded<Bag> loaded = load_model<Bag>(saved);
  CHECK(to_json(loaded.model.config()) == to_json(bag.config()));
  CHECK(loaded.model.config().note == "of \"tokens\"");
  CHECK(loaded.model.config().activation == Activation::silu);
  const std::vector<int64_t> prompt{'t', 'h'};
  const auto text = generate(bag, prompt, 30, {.seed = 1});
  CHECK(generate(loaded.model, prompt, 30, {.seed = 1}) == text);
  CHECK(generate_batch(loaded.model, std::vector{prompt, prompt}, 30, {.temperature = 0})[1] ==
        generate(bag, prompt, 30, {.temperature = 0}));
  CHECK_SAYS(load_model<Gpt>(saved), "config.json");
  const Tensor tokens = tensor<int64_t>({1, 2, 3}, {1, 3});
  Lora lora = apply_lora(bag, params, {.targets = {"head"}, .rank = 2});
  CHECK(params.trainable().empty());
  Trainer adapters(bag, lora.params(), bytes_of(rhyme()), c);
  adapters.run();
  const Tensor before = bag.forward(tokens, {});
  lora.merge();
  CHECK(distance(bag.forward(tokens, {}), before) < 1e-4);
  CHECK_SAYS(apply_lora(bag, params, {.targets = {"body"}}), "The modules are head (1).");
}

TEST_CASE("configurations of one's own: what is wrong in a text is named") {
  const auto read = [](const std::string& text, bool every = false) {
    return error_of(
        [&] { detail::config_from_json<own::BagConfig>(text, {.name = "bag.json", .every_field = every}); });
  };
  CHECK(read("{}") == "no error");
  CHECK_HAS(read("{}", true), "[config] bag.json has no 'width'");
  CHECK_HAS(read("{\"widht\": 3}"), "'widht' is not known. Did you mean 'width'?");
  CHECK_HAS(read("{\"width\": \"3\"}"), "'width' is \"3\". It must be an integer");
  CHECK_HAS(read("{\"note\": 3}"), "a text in quotes");
  CHECK_HAS(read("{\"activation\": \"rleu\"}"), "rleu");
  CHECK_HAS(read("[]"), "It must be an object");
  CHECK_HAS(read("{"), "bag.json");
}

TEST_CASE("validation_loss: ignored targets do not count, and stop() gives up") {
  const Params params(Device(), 1);
  const Plain model(params);
  const auto batch = [](int64_t i) -> std::optional<Batch> {
    if (i == 3) return std::nullopt;
    const int64_t kept = i == 2 ? 0 : i + 1;  // the third keeps none
    std::vector<int64_t> targets(4, Batch::kIgnoreIndex);
    std::fill_n(targets.begin(), kept, 7 + i);
    return Batch{tensor<int64_t>({1, 2, 3, 4}, {1, 4}), tensor(targets, {1, 4})};
  };
  const auto rows = [&](int64_t from, int64_t to, int64_t target) {
    const Tensor x = slice(tensor<int64_t>({1, 2, 3, 4}, {4}), 0, from, to);
    return cross_entropy(model.forward(x), full({to - from}, double(target), DType::i64)).item<double>();
  };
  const ValidationLoss e = validation_loss(model, batch);
  CHECK(e.targets == 3);
  CHECK(e.loss == doctest::Approx((rows(0, 1, 7) + 2 * rows(0, 2, 8)) / 3).epsilon(1e-6));
  int asked = 0;
  const ValidationLoss some = validation_loss(model, batch, {.stop = [&] { return ++asked == 2; }});
  CHECK(some.stopped);
  CHECK(some.targets == 1);
  CHECK_SAYS(validation_loss(model, [](int64_t) { return std::optional<Batch>(); }), "[validation_loss] 0 batches");
}

TEST_CASE("own loops: a checkpoint of any configuration goes on to the same bits") {
  struct Loop {
    Params params{Device(), 2};
    Bag model{params, {.width = 12}};
    AdamW optimizer{params.trainable(), {.lr = 1e-2}};
    ShuffledBatches batches{bytes_of(rhyme()), 3, 16, Rng{4}};
    int64_t step = 0;
    void run(int64_t to) {
      for (; step < to; ++step) {
        const std::vector<Batch> micro{batches.next(), batches.next()};
        const auto loss = [&](const Batch& b) { return cross_entropy(model.forward(b.inputs, {}), b.targets); };
        optimizer.step(accumulate(loss, micro).grads, {.clip_norm = 1});
      }
    }
    Checkpoint checkpoint() const {
      return {.config = to_json(model.config()), .state = training_state(step, params, optimizer, batches.rng())};
    }
  };
  Folder folder;
  Loop whole, first, second;
  whole.run(8);
  first.run(3);
  save_checkpoint(folder / "c", first.checkpoint());
  const Checkpoint c = load_checkpoint(folder / "c");
  CHECK(detail::config_from_json<own::BagConfig>(c.config).width == 12);
  restore(c.state, second.params, second.optimizer);
  second.batches.set_rng(c.state.data);
  second.step = c.state.step;
  second.run(8);
  save_checkpoint(folder / "a", whole.checkpoint());
  save_checkpoint(folder / "b", second.checkpoint());
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
  TrainerState wrong = c.state;
  wrong.tensors.erase("adamw.head.weight.v");
  const auto before = bits_of(second.params.all()[0].tensor);
  CHECK_SAYS(restore(wrong, second.params, second.optimizer), "has no 'adamw.head.weight.v'");
  CHECK(bits_of(second.params.all()[0].tensor) == before);
  CHECK(second.optimizer.steps() == 8);
  CHECK_SAYS(save_checkpoint(folder / "d", {.config = "3", .state = c.state}), "must be a JSON object");
}
