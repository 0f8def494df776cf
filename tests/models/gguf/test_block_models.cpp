// A Gpt over weights in blocks equals the Gpt over their dequantized values.
#include <tapegrad/tapegrad.h>

#include "support/block_weights.h"
#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;
namespace {
GptConfig config(bool tied) {
  return {.vocab_size = 256,
          .context = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .width = 64,
          .ff_width = 128,
          .positions = Positions::rope,
          .norm = NormKind::rms_norm,
          .activation = Activation::swiglu,
          .qk_norm = true,
          .tied_head = tied};
}
// Matrices as in a file: parts of a layer have their own formats.
std::optional<BlockWeight> blocks_of(const std::string& name, const Shape& s) {
  using enum BlockFormat;
  if (s.size() != 2) return {};
  const uint64_t seed = name.size() + size_t(name[2]);
  if (name.ends_with("qkv.weight")) return random_blocks({{q4_0, 64}, {q5_0, 32}, {q8_0, 32}}, s[1], seed);
  if (name.ends_with("fc.weight")) return random_blocks({{q4_1, 128}, {q5_1, 128}}, s[1], seed);
  return random_blocks({{name.starts_with("h.") ? q4_0 : nf4, s[0]}}, s[1], seed);
}
// Both read the same numbers.
struct Model2 {
  Params params;
  Gpt model;
  Model2(const GptConfig& c, bool blocks, DType dtype = DType::f32) : params({}, 1, dtype), model(make(c, blocks)) {
    params.check_all_used();
  }
  Gpt make(const GptConfig& c, bool keep) const {
    TensorSource source = source_for(c);
    const auto all = source.shapes;
    source.read = [all](const std::string& name) {
      const auto b = blocks_of(name, all.at(name));
      return b ? dequantize(*b, DType::f32) : random(all.at(name), name.size(), 0.5, 1.5);
    };
    if (keep) source.blocks = [all](const std::string& name) { return blocks_of(name, all.at(name)); };
    params.load(std::move(source));
    return Gpt(params, c);
  }
};
const LoraConfig kAll{.targets = {"*.attn.qkv", "*.proj", "*.mlp.gate", "*.mlp.up"}, .rank = 4, .alpha = 8};
std::vector<int64_t> some_tokens() { return {5, 250, 17, 3, 3, 99, 0, 255, 42, 8, 1, 2}; }
Tensor tokens() { return tensor<int64_t>(some_tokens(), {2, 6}); }
}  // namespace

TEST_CASE("a Gpt over blocks: logits have the bits of the dequantized model, eager, lazy, compiled, with a cache") {
  for (const bool tied : {true, false}) {
    const Model2 a(config(tied), true), b(config(tied), false);
    CHECK(a.params.numel() == b.params.numel());
    CHECK(a.params.all_blocks().size() == size_t(tied ? 9 : 10));
    const auto expected = bits_of(b.model.forward(tokens()));
    CHECK(bits_of(a.model.forward(tokens())) == expected);
    CHECK(bits_of(under<LazyScope>([&] { return a.model.forward(tokens()); })) == expected);
    const auto f = compile([&](const Tensor& t) { return a.model.forward(t).detach(); });
    for (int i = 0; i < 3; ++i) CHECK(bits_of(f(tokens())) == expected);
    const std::vector<int64_t> prompt = some_tokens();
    CHECK(generate(a.model, prompt, 8, {.temperature = 0}) == generate(b.model, prompt, 8, {.temperature = 0}));
    const ForwardOptions bf16{.compute = DType::bf16};
    CHECK(distance(wide(a.model.forward(tokens(), bf16)), wide(b.model.forward(tokens(), bf16))) < 0.02);
  }
}

TEST_CASE("LoRA over blocks: losses and gradients of the dequantized model, in each mode of training") {
  for (const bool tied : {true, false})
    for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::block})
      for (const bool compiled : {false, true}) {
        CAPTURE(compiled);
        TrainConfig c = tiny_train();
        c.max_steps = 6, c.eval_every = 3, c.recompute = recompute, c.compile = compiled;
        std::vector<double> losses[2];
        StateDict trained[2];
        for (const bool blocks : {true, false}) {
          Model2 m(config(tied), blocks);
          const Lora lora = apply_lora(m.model, m.params, kAll);
          CHECK(m.params.trainable().empty());
          Trainer trainer(m.model, lora.params(), bytes_of(rhyme()), c);
          losses[blocks] = numbers_of(rest_of(trainer));
          trained[blocks] = lora.params().state();
        }
        REQUIRE(losses[0].size() == losses[1].size());
        for (size_t i = 0; i < losses[0].size(); ++i)
          CHECK(losses[1][i] == doctest::Approx(losses[0][i]).epsilon(1e-5));
        for (const auto& [name, t] : trained[0]) CHECK(distance(trained[1].at(name), t) < 1e-3);
      }
}

TEST_CASE("LoRA over a GGUF file in q4_0: the losses of PEFT over its dequantized weights") {
  const std::string folder = TG_TEST_DATA "/peft/gguf_llama2";
  const SafetensorsFile expected(folder + "/expected.safetensors");
  LoadedModel m = load_model(TG_TEST_DATA "/gguf/llama2.gguf", {}, DType::f32, Blocks::file);
  const Lora lora = load_adapter(folder, m);
  AdamW optimizer(lora.params().trainable(), {.lr = 1e-2, .weight_decay = 0});
  const Tensor rows = expected.tensor("tokens");
  const Batch batch{slice(rows, 1, 0, 23), slice(rows, 1, 1, 24)};
  for (const double theirs : values<double>(expected.tensor("losses"))) {
    const Tensor loss = m.model.loss(batch);
    CHECK(std::abs(loss.item<double>() - theirs) <= 1e-5);
    optimizer.step(backward(loss));
  }
}

// The nearest multiples of a scale, as llama.cpp rounds.
BlockWeight q4_0_of(const Tensor& w) {
  std::vector<uint8_t> to;
  const std::vector<float> all = values(w);
  for (size_t at = 0; at < all.size(); at += 32) {
    const float* const x = &all[at];
    const float most = *std::max_element(x, x + 32, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const f16 d(most / -8);
    const float inverse = most == 0 ? 0 : -8 / most;
    const auto q = [&](int i) { return uint8_t(std::min(15, int(x[i] * inverse + 8.5f))); };
    to.push_back(uint8_t(d.bits)), to.push_back(uint8_t(d.bits >> 8));
    for (int i = 0; i < 16; ++i) to.push_back(uint8_t(q(i) | q(i + 16) << 4));
  }
  return {{{tensor(to, {w.size(0), w.size(1) / 32 * 18}), BlockFormat::q4_0}}};
}
TEST_CASE("finetuning over q4_0 of a trained model ends within 2 % of the loss over its f32 weights") {
  const std::string text = read_file(TG_TEST_DATA "/prose.txt");
  std::string other = text;
  std::ranges::replace(other, 'e', 'E');
  const GptConfig c = config(true);
  const Params params;
  const Gpt trained(params, c);
  TrainConfig t = tiny_train();
  t.batch = 8, t.max_steps = 300, t.eval_every = 0;
  Trainer(trained, params, bytes_of(text), t).run();
  double before = 0, after[2];
  for (const bool blocks : {false, true}) {
    const Params base;
    const StateDict state = params.state();
    TensorSource source{.shapes = {}, .read = [=](const std::string& name) { return state.at(name); }};
    for (const auto& [name, x] : state) source.shapes[name] = x.shape();
    if (blocks)
      source.blocks = [=](const std::string& name) {
        return state.at(name).ndim() == 2 ? std::optional(q4_0_of(state.at(name))) : std::nullopt;
      };
    base.load(std::move(source));
    Gpt model(base, c);
    const Lora lora = apply_lora(model, base, kAll);
    Trainer trainer(model, lora.params(), bytes_of(other), t);
    if (!blocks) before = trainer.validation_loss();
    trainer.run();
    after[blocks] = trainer.validation_loss();
  }
  CHECK(after[0] < 0.9 * before);
  CHECK(after[1] != after[0]);
  CHECK(std::abs(after[1] / after[0] - 1) < 0.02);
}

TEST_CASE("a Gpt over blocks: the hash knows codes and formats, adapters are saved and loaded") {
  Model2 a(config(true), true), plain(config(true), false);
  const std::string hash = weights_hash(a.params);
  CHECK(hash == weights_hash(Model2(config(true), true).params));
  CHECK(hash != weights_hash(plain.params));
  const auto all = a.params.all_blocks();
  for (const auto& [name, b] : all)
    for (const auto& part : b.parts) {
      const Tensor& t = part.codes;
      const std::vector<uint8_t> before = t.to_vector<uint8_t>();
      std::vector<uint8_t> other = before;
      other.back() ^= 1;
      Tensor(t).assign(tensor<uint8_t>(other, t.shape()));
      CHECK(weights_hash(a.params) != hash);
      Tensor(t).assign(tensor<uint8_t>(before, t.shape()));
    }
  CHECK(weights_hash(a.params) == hash);

  const Lora lora = apply_lora(a.model, a.params, kAll);
  for (const Parameter& p : lora.params().all()) Tensor(p.tensor).assign(random(p.tensor.shape(), 3, -0.1, 0.1));
  const auto layout = adapter_layout(a.model.config());
  const Folder folder;
  save_adapter(folder.path, lora, {.layout = layout, .base = hash});
  Model2 again(config(true), true);
  (void)load_adapter(folder.path, again.model, again.params, layout);
  CHECK(bits_of(again.model.forward(tokens())) == bits_of(a.model.forward(tokens())));
  expect(
      REFUSES(load_adapter(folder.path, plain.model, plain.params, layout), value, "was trained over other weights"));
}

TEST_CASE("a Gpt over blocks refuses what blocks cannot hold") {
  Model2 m(config(true), true);
  Lora lora = apply_lora(m.model, m.params, kAll);
  expect(REFUSES(lora.merge(), state, "[lora] 'h.0.attn.qkv.weight' is in blocks of q4_0, which cannot hold"));
  expect(REFUSES(m.params.state(), state, "[params] 'h.0.attn.proj.weight' and 8 other weights are in blocks"));
  expect(REFUSES(replace_linears(m.model, {"*"}, LinearKind::switchback), value, "[replace_linears] 'h.0.attn.qkv'"));
  expect(REFUSES(m.model.crop_context(m.params, 4), state, "adapter on"));
  GptConfig narrow = config(true);
  narrow.ff_width = 64;
  const Params params;
  params.load({.shapes = {{"wte.weight", {256, 64}}}, .read = {}, .blocks = [](const std::string& name) {
                 return blocks_of(name, {128, 64});
               }});
  expect(REFUSES(Gpt(params, narrow), shape, "[params] 'wte.weight' is (256, 64) in the model and (128, 64)"));
}
