// Gpt: the decoder-only transformer with pre-norm blocks and learned positions (Radford et al. 2019), with LayerNorm or
// RMSNorm, with or without biases, and with its head tied to the token table or not. The loss is cross_entropy() of its
// logits; sampling is in generate.h, the configuration as JSON in config_json.h.
#pragma once
#include <tapegrad/models/gpt/kv_cache.h>
#include <tapegrad/models/nn/layers.h>

namespace tg {

struct GptConfig {
  int64_t vocab_size = 256;
  int64_t context = 64;  // the most positions, and the rows of the table of positions
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;   // C; a multiple of heads
  int64_t ff_width = 0;  // of the hidden layer of each MLP; 0: 4 * width
  NormKind norm = NormKind::layer_norm;
  Activation activation = Activation::gelu;
  bool bias = false;      // of all Linear layers but the head, and of LayerNorm
  bool tied_head = true;  // the head's weight is the token table
  double dropout = 0;     // of embeddings and of what each layer adds; only when forward() is given a generator
  double norm_eps = 1e-5;
  double init_std = 0.02;  // Linear and Embedding: N(0, init_std^2); both proj: init_std / sqrt(2 * layers)

  void validate() const;          // an Error names the first field that is wrong
  static GptConfig gpt2_small();  // 124 million parameters
  bool operator==(const GptConfig&) const = default;
};

struct ForwardOptions {
  Rng* rng = nullptr;        // draws dropout, if the configuration has any; null: no dropout
  KvCache* cache = nullptr;  // tokens continue what it holds, and are added to it; unchanged by a call that fails
  bool last_only = false;    // logits of the last position only: (B, 1, V)
};

// Parameters: wte.weight (V, C), wpe.weight (context, C), h.{i}.ln_1.weight (C), h.{i}.attn.qkv.weight (3C, C),
// h.{i}.attn.proj.weight (C, C), h.{i}.ln_2.weight (C), h.{i}.mlp.fc.weight (F, C), h.{i}.mlp.proj.weight (C, F),
// ln_f.weight (C), lm_head.weight (V, C) unless tied; and each with .bias next to .weight, except tables and head.
class Gpt {
 public:
  Gpt(const Params&, const GptConfig&);

  // tokens (B, T) i32 or i64 -> logits (B, T, V). An Error when T, with what the cache holds, is more than the context,
  // or when a token is outside the vocabulary.
  Tensor forward(const Tensor& tokens, ForwardOptions = {}) const;
  const GptConfig& config() const { return config_; }
  Device device() const { return wte_.table.device(); }

 private:
  struct Block : nn::Layer {
    nn::Norm ln_1, ln_2;
    nn::SelfAttention attn;
    nn::Mlp mlp;
    Block(const Params&, const GptConfig&);
    Tensor forward(Tensor x, const nn::LayerContext&) const;  // (B, T, C) -> (B, T, C)
  };
  GptConfig config_;
  nn::Layer layer_;
  nn::Embedding wte_, wpe_;
  std::vector<Block> blocks_;
  nn::Norm ln_f_;
  nn::Linear head_;
};

}  // namespace tg
