/// @file
/// Gpt: the decoder-only transformer with pre-norm blocks (Radford et al. 2019) and its variants: learned or rotary
/// positions, LayerNorm or RMSNorm, GELU, SiLU or SwiGLU, grouped keys, biases or none, a head tied to the token table
/// or not; in bf16 with f32 parameters, and with activations that are computed again instead of kept. The loss is
/// cross_entropy() of its logits; sampling is in generate.h, the configuration as JSON in config_json.h.
#pragma once
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/models/nn/layers.h>

namespace tg {

struct GptConfig {
  int64_t vocab_size = 256;
  int64_t context = 64;  ///< the most positions, and the rows of the table of learned ones
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< heads of keys and values (GQA); they divide heads; 0: as heads
  int64_t width = 128;   ///< C; a multiple of heads
  int64_t ff_width = 0;  ///< F, of the hidden layer of each MLP; 0: 4 * width
  Positions positions = Positions::learned;
  double rope_theta = 10000;  ///< of positions rope
  NormKind norm = NormKind::layer_norm;
  bool norm_affine = true;  ///< norms scale, and shift with bias
  Activation activation = Activation::gelu;
  bool bias = false;      ///< of all Linear layers but the head, and of LayerNorm
  bool tied_head = true;  ///< the head's weight is the token table
  double dropout = 0;     ///< of embeddings and of what each layer adds; only when forward() is given a generator
  double norm_eps = 1e-5;
  /// gpt2: all matrices N(0, init_std^2), both proj with init_std / sqrt(2 * layers). xavier: Linear N(0, 2 / (in +
  /// out)), where queries, keys, values, gate and hidden layer count as matrices of their own, and tables N(0, 1), all
  /// cut at 3 standard deviations; init_std is not used. Norms start at 1, biases at 0.
  InitScheme init = InitScheme::gpt2;
  double init_std = 0.02;

  void validate() const;  ///< an Error names the first field that is wrong
  bool operator==(const GptConfig&) const = default;
};

struct ForwardOptions {
  Rng* rng = nullptr;        ///< draws dropout, if the configuration or an adapter has any; null: no dropout
  KvCache* cache = nullptr;  ///< tokens continue what it holds, and are added to it; unchanged by a call that fails
  bool last_only = false;    ///< logits of the last position only: (B, 1, V)
  /// bf16: f32 parameters, cast once where they are used; Linear layers, attention and activations in bf16, the
  /// residual stream and norms in f32, logits bf16. Gradients of parameters are f32. f32: all in the dtype of the
  /// parameters.
  DType compute = DType::f32;
  /// Blocks keep their inputs only, and run again in backward: the same gradients bit for bit. Not with a cache. For
  /// less work and less gain, call forward() in a RecomputeScope.
  bool recompute = false;
};

/// Parameters: wte.weight (V, C), wpe.weight (context, C) if positions are learned, h.{i}.ln_1.weight (C),
/// h.{i}.attn.qkv.weight (C + 2 Ckv, C) with Ckv = C kv_heads / heads, h.{i}.attn.proj.weight (C, C),
/// h.{i}.ln_2.weight (C), h.{i}.mlp.fc.weight (F, C), of swiglu (2F, C) with the gate first, h.{i}.mlp.proj.weight
/// (C, F), ln_f.weight (C), lm_head.weight (V, C) unless tied; and each with .bias next to .weight, except tables and
/// head. A model that is made under LazyScope has shapes and no memory, until its parameters are read.
class Gpt {
 public:
  Gpt(const Params&, const GptConfig&);

  /// tokens (B, T) i32 or i64 -> logits (B, T, V). An Error when T, with what the cache holds, is more than the
  /// context, when a token is outside the vocabulary, or when options do not go together.
  Tensor forward(const Tensor& tokens, ForwardOptions = {}) const;
  const GptConfig& config() const { return config_; }
  Device device() const { return wte_.table.device(); }
  struct NamedLinear {
    std::string name;   ///< of the module: "h.3.mlp.fc"
    nn::Linear* layer;  ///< of this model, while it lives and is not moved
  };
  /// The Linear layers in the order of forward(). The head is one of them unless it is tied.
  std::vector<NamedLinear> linears();

 private:
  // The residual stream, x + branch (B, T, C) each: what a block adds last is left to the norm that reads it next.
  struct Stream {
    Tensor x, branch;  // an empty branch: x
  };
  struct Block : nn::Layer {
    nn::Norm ln_1, ln_2;
    nn::SelfAttention attn;
    nn::Mlp mlp;
    Block(const Params&, const GptConfig&);
    Stream forward(Stream, const nn::LayerContext&) const;
  };
  void check(const Tensor& tokens, const ForwardOptions&) const;
  GptConfig config_;
  nn::Layer layer_;
  nn::Embedding wte_, wpe_;  // wpe_ has no table unless positions are learned
  std::vector<Block> blocks_;
  nn::Norm ln_f_;
  nn::Linear head_;
};

}  // namespace tg
