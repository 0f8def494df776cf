// A Gpt's rates of dropout and their places, head_bias, attention weights, a crop of the context.
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/ops/ops.h>

#include "support/files.h"
#include "support/tiny_gpt.h"

using namespace tg;
namespace {
// The generator's blocks that one forward pass of two_rows() takes, B 2 and T 8.
uint64_t blocks_drawn(const GptConfig& c, bool recompute = false) {
  const auto [params, model] = new_gpt(c);
  Rng rng{3};
  model.forward(two_rows(), {.rng = &rng, .recompute = recompute});
  return rng.offset;
}
}  // namespace

TEST_CASE("dropout of attention weights, branches and embeddings: each rate draws where it belongs") {
  constexpr uint64_t kAttention = 2 * 2 * 2, kEmbeddings = 2 * 8 * 8 / 4, kBranches = 4 * kEmbeddings;
  const auto apart = [](double attn, double resid, double embd) {
    GptConfig c = kTwo;
    c.attn_dropout = attn, c.resid_dropout = resid, c.embd_dropout = embd;
    return c;
  };
  CHECK(blocks_drawn(apart(0.1, 0, 0)) == kAttention);
  CHECK(blocks_drawn(apart(0, 0.1, 0)) == kBranches);
  CHECK(blocks_drawn(apart(0, 0, 0.1)) == kEmbeddings);
  GptConfig c = kTwo;
  c.dropout = 0.1;
  CHECK(blocks_drawn(c) == kAttention + kBranches + kEmbeddings);
  CHECK(blocks_drawn(c, true) == blocks_drawn(c));
  c.ff_dropout = FfDropout::activation;  // 4 times as wide
  CHECK(blocks_drawn(c) == kAttention + 5 * kBranches / 2 + kEmbeddings);
  c.resid_dropout = 0;
  CHECK(blocks_drawn(c) == kAttention + kEmbeddings);
  c.qk_norm = true, c.kv_heads = 1, c.positions = Positions::rope;
  CHECK(blocks_drawn(c) == kAttention + kEmbeddings);
}
TEST_CASE("dropout after the activation: the hidden layer is dropped, and the result is not") {
  for (const LinearKind kind : {LinearKind::plain, LinearKind::switchback}) {
    const Params params;
    nn::Mlp mlp(params, 16, {.dropout = 0.5, .ff_dropout = FfDropout::activation});
    mlp.fc.kind = mlp.proj.kind = kind;
    const Tensor x = random({3, 16}, 1);
    Rng rng{5}, same{5};
    const Tensor h = dropout(gelu(mlp.fc.forward(x)), 0.5, same);
    CHECK(bits_of(mlp.forward(x, {.rng = &rng})) == bits_of(mlp.proj.forward(h)));
    CHECK(rng == same);
  }
}
TEST_CASE("a rate of dropout outside [0, 1) is an Error that names it") {
  for (const double rate : {1.0, -0.5, double(NAN)}) {
    GptConfig c = kTwo;
    for (const auto& [name, field] : {std::pair{"attn_dropout", &c.attn_dropout},
                                      {"resid_dropout", &c.resid_dropout},
                                      {"embd_dropout", &c.embd_dropout}}) {
      *field = rate;
      CHECK_SAYS(c.validate(),
                 fmt::format("[gpt_config] {} is {}. It must be in [0, 1), or -1 for dropout.", name, rate));
      *field = -1;
    }
  }
}
TEST_CASE("head_bias: added to the logits, tied or not, with the gradient of a bias") {
  for (const bool tied : {true, false}) {
    GptConfig c = kTwo;
    c.tied_head = tied, c.head_bias = true;
    const auto [params, model] = new_gpt(c);
    StateDict state = params.state();
    const Tensor bias = state.at("lm_head.bias"), without = model.forward(two_rows());
    CHECK(bias.shape() == Shape{c.vocab_size});
    const Tensor given = random(bias.shape(), 3);
    state.at("lm_head.bias") = given;
    params.assign(state);
    const Tensor logits = model.forward(two_rows());
    CHECK(distance(logits, without + given) <= 1e-6);
    for (const Parameter& p : params.trainable())
      if (p.name == "lm_head.bias") CHECK(distance(backward(sum(logits))[p.tensor], full(bias.shape(), 16)) <= 1e-5);
    c.classes = 2;
    CHECK_SAYS(c.validate(), "[gpt_config] head_bias is true, and the head has 2 classes");
  }
}
TEST_CASE("attention weights of a block: what its values are weighted by") {
  for (const bool qk_norm : {false, true}) {
    GptConfig c = kTwo;
    c.layers = 1, c.kv_heads = 1, c.positions = Positions::rope, c.qk_norm = qk_norm, c.dropout = 0.5;
    const auto [params, model] = new_gpt(c, Params(Device(), 1, DType::f64));
    const nn::SelfAttention attn(
        params.shared().at("h").at(0).at("attn"), 8,
        {.heads = 2, .kv_heads = 1, .qk_norm = qk_norm, .positions = c.positions, .causal = true});
    const Tensor x = random<double>({2, 8, 8}, 1), weights = attn.weights(x);
    REQUIRE(weights.shape() == Shape{2, 2, 8, 8});
    CHECK(distance(sum(weights, {3}), ones({2, 2, 8}, DType::f64)) <= 1e-14);
    const Tensor v = transpose(reshape(slice(attn.qkv.forward(x), 2, 12, 16), {2, 8, 1, 4}), 1, 2);
    const Tensor y = reshape(transpose(matmul(weights, v), 1, 2), {2, 8, 8});
    CHECK(distance(attn.proj.forward(y), attn.forward(x)) <= 1e-13);
    Rng rng;
    const Tensor of_block = model.attention_weights(two_rows(), 0, {.rng = &rng});
    CHECK(distance(sum(of_block, {3}), ones({2, 2, 8}, DType::f64)) <= 1e-14);
    CHECK(distance(tril(of_block), of_block) == 0);
    CHECK(bits_of(of_block) == bits_of(model.attention_weights(two_rows(), 0)));
    for (const int64_t block : {-1, 1})
      CHECK_SAYS(model.attention_weights(two_rows(), block),
                 fmt::format("of block {}. There are 1, counted from 0.", block));
  }
}
TEST_CASE("crop_context: the logits of shorter texts, and no longer ones") {
  for (const Positions positions : {Positions::learned, Positions::rope}) {
    GptConfig c = kTwo;
    c.positions = positions;
    const auto [params, model] = new_gpt(c);
    const auto [shorter, cropped] = model.crop_context(params, 5);
    shorter.check_all_used();
    const Tensor tokens = slice(two_rows(), 1, 0, 5);
    CHECK(bits_of(cropped.forward(tokens)) == bits_of(model.forward(tokens)));
    CHECK_SAYS(cropped.forward(two_rows()), "the context is 5");
    const Folder folder;
    save_model(folder.path, cropped, shorter);
    CHECK(load_model(folder.path).model.context() == 5);
    for (const int64_t n : {0, 9})
      CHECK_SAYS(model.crop_context(params, n), fmt::format("[gpt] a crop to {} positions. It must be from 1 to 8", n));
    Gpt adapted = model;
    const Lora lora = apply_lora(adapted, params, {.targets = {"*"}, .rank = 1});
    CHECK_SAYS(adapted.crop_context(params, 5), "Crop it before apply_lora().");
  }
}
