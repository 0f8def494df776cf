// A decoder with a mixture of experts (Shazeer et al., 2017). Experts have a fixed capacity (Fedus et al., 2022);
// dropped tokens keep only the residual stream. The host reads no value: the model also runs lazily and compiled.
#pragma once
#include <tapegrad/tapegrad.h>

#include <cmath>

struct MoeConfig {
  int64_t vocab_size = 256, context = 32, layers = 2, heads = 4, width = 64;
  int64_t experts = 4, top_k = 1;
  double room = 1.25;     // capacity relative to an even share
  double balance = 0.01;  // weight of the load-balancing loss
};
template <class F> void visit_fields(MoeConfig& c, F&& f) {
  f("vocab_size", c.vocab_size), f("context", c.context), f("layers", c.layers), f("heads", c.heads);
  f("width", c.width), f("experts", c.experts), f("top_k", c.top_k), f("room", c.room), f("balance", c.balance);
}

struct Experts : tg::nn::Layer {
  tg::nn::Linear router;
  std::vector<tg::nn::Mlp> mlps;
  MoeConfig config;

  Experts(const tg::Params& p, const MoeConfig& c)
      : Layer{p.scope()}, router(p.at("router"), c.width, c.experts, {.bias = false}), config(c) {
    for (int64_t i = 0; i < c.experts; ++i)
      mlps.emplace_back(p.at("mlps").at(i), c.width, tg::nn::BlockOptions{.activation = tg::Activation::silu});
  }
  // (B, T, C) -> (B, T, C). Adds to `balance` the loss of Fedus et al., equation 4: E sum(share of tokens * mean
  // probability), which is 1 for equal shares.
  tg::Tensor forward(const tg::Tensor& x, tg::Tensor& balance) const {
    const auto here = enter();
    const int64_t width = x.size(-1), n = x.numel() / width, experts = config.experts, k = config.top_k;
    const auto room = int64_t(std::ceil(config.room * double(n * k) / double(experts)));
    const tg::Tensor rows = tg::reshape(x, {n, width}), probability = tg::softmax(router.forward(rows));  // (N, E)
    const auto [values, indices] = tg::topk(probability, k);                                              // (N, k)
    const tg::Tensor weights = k == 1 ? values : values / tg::sum(values, {1}, {.keepdim = true});

    // The slot of each choice: first choices before second ones, dropped tokens in an extra last row.
    const tg::Tensor expert = tg::flatten(tg::transpose(indices, 0, 1));            // (k N)
    const tg::Tensor chosen = tg::one_hot(expert, experts);                         // (k N, E)
    const tg::Tensor place = tg::sum((tg::cumsum(chosen, 0) - 1.0) * chosen, {1});  // (k N), place in its expert
    const tg::Tensor row = expert.to(tg::DType::f32) * double(room) + place;
    const tg::Tensor slot = tg::where(place < double(room), row, double(experts * room)).to(tg::DType::i64);

    const tg::Tensor none = tg::zeros({experts * room + 1, width}, x.dtype(), x.device());
    const tg::Tensor in = tg::index_add(none, 0, slot, tg::repeat(rows, {k, 1}));
    std::vector<tg::Tensor> out;
    for (int64_t e = 0; e < experts; ++e)
      out.push_back(mlps[size_t(e)].forward(tg::slice(in, 0, e * room, (e + 1) * room)));
    out.push_back(tg::zeros({1, width}, x.dtype(), x.device()));
    const tg::Tensor y = tg::index_select(tg::concat(out, 0), 0, slot);  // (k N, C)
    const tg::Tensor weighted = y * tg::reshape(tg::transpose(weights, 0, 1), {k * n, 1});

    const tg::Tensor share = tg::sum(tg::mean(chosen, {0}) * tg::mean(probability, {0})) * double(experts);
    balance = balance ? balance + share : share;
    return tg::reshape(tg::sum(tg::reshape(weighted, {k, n, width}), {0}), x.shape());
  }
};

struct MoeDecoder {
  struct Block {
    tg::nn::Norm before_attention, before_experts;
    tg::nn::SelfAttention attention;
    Experts experts;
    Block(const tg::Params& p, const MoeConfig& c)
        : before_attention(p.at("ln_1"), c.width),
          before_experts(p.at("ln_2"), c.width),
          attention(p.at("attn"), c.width, {.heads = c.heads, .positions = tg::Positions::rope, .causal = true}),
          experts(p.at("moe"), c) {}
  };
  MoeConfig settings;
  tg::nn::Embedding table;
  std::vector<Block> blocks;
  tg::nn::Norm last;

  MoeDecoder(const tg::Params& p, const MoeConfig& c)
      : settings(c), table(p.at("wte"), c.vocab_size, c.width), last(p.at("ln_f"), c.width) {
    for (int64_t i = 0; i < c.layers; ++i) blocks.emplace_back(p.at("h").at(i), c);
  }
  const MoeConfig& config() const { return settings; }
  int64_t context() const { return settings.context; }
  int64_t vocab_size() const { return settings.vocab_size; }

  tg::Tensor logits(const tg::Tensor& tokens, tg::Tensor& balance) const {  // (B, T) -> (B, T, V)
    tg::Tensor x = table.forward(tokens);
    for (const Block& b : blocks) {
      x = x + b.attention.forward(b.before_attention.forward(x));
      x = x + b.experts.forward(b.before_experts.forward(x), balance);
    }
    return tg::linear(last.forward(x), table.table);
  }
  tg::Tensor forward(const tg::Tensor& tokens) const {
    tg::Tensor balance;
    return logits(tokens, balance);
  }
  // Training passes a generator and adds the load-balancing loss.
  tg::Tensor loss(const tg::Batch& batch, const tg::ForwardOptions& o) const {
    tg::Tensor balance;
    const tg::Tensor loss = tg::cross_entropy(logits(batch.inputs, balance), batch.targets);
    return o.rng ? loss + balance * settings.balance : loss;
  }
};
