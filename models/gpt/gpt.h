/// @file
/// Gpt: the decoder-only transformer with pre-norm blocks (Radford et al. 2019) and its variants: learned or rotary
/// positions, LayerNorm or RMSNorm, GELU, SiLU or SwiGLU, grouped keys, with or without biases, and a head that shares
/// the token table or not. It runs in bf16 with f32 parameters, and can recompute activations instead of keeping them.
/// The loss is cross_entropy() of its logits; sampling is in generate.h, the configuration as JSON in config_json.h.
#pragma once
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/kv_cache.h>

#include <string>

namespace tg {

/// The shape of a Gpt, and how its parameters start.
struct GptConfig {
  int64_t vocab_size = 256;
  int64_t context = 64;  ///< the most positions; learned positions have a table of so many rows
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< heads of keys and values (GQA), which divide heads; 0 means heads
  int64_t head_dim = 0;  ///< HS, the size of a head; 0 means width / heads, and heads must divide width then
  int64_t width = 128;   ///< C
  int64_t ff_width = 0;  ///< F, the hidden size of each MLP; 0 means 4 * width
  Positions positions = Positions::learned;
  double rope_theta = 10000;  ///< for rotary positions
  RopeScaling rope_scaling = {};
  NormKind norm = NormKind::layer_norm;
  bool norm_affine = true;  ///< whether norms scale, and shift with `bias`
  Activation activation = Activation::gelu;
  bool bias = false;      ///< of all Linear layers except the head, and of LayerNorm
  bool qkv_bias = false;  ///< of queries, keys and values alone; not with `bias`
  bool qk_norm = false;   ///< RMSNorm of each head of queries and keys, before rope, with norm_eps
  bool tied_head = true;  ///< whether the head shares the token table
  double dropout = 0;     ///< of embeddings and of what each layer adds; only if forward() is given a generator
  double norm_eps = 1e-5;
  /// gpt2: all matrices are N(0, init_std^2), and both proj have init_std / sqrt(2 * layers). xavier: Linear layers are
  /// N(0, 2 / (in + out)), with queries, keys, values, gate and hidden layer as matrices of their own; tables are N(0,
  /// 1); all are cut at 3 standard deviations, and init_std is not used. Norms start at 1, biases at 0.
  InitScheme init = InitScheme::gpt2;
  double init_std = 0.02;
  /// Fragments of the layers that `fragmented` matches: FragmentedLinear takes the place of Linear there, with its own
  /// initialisation. 0: all layers are plain.
  int64_t fragments = 0;
  std::string fragmented = "h.*.mlp.*";  ///< a pattern of names of linears(), as LoraConfig::targets has them

  int64_t head_size() const { return head_dim ? head_dim : width / heads; }  ///< HS
  void validate() const;  ///< throws an Error that names the first wrong field
  bool operator==(const GptConfig&) const = default;
};

/// A JSON object with every field, indented by two spaces. config_json.h reads it.
std::string to_json(const GptConfig&);

/// The model. Its parameters are wte.weight (V, C), wpe.weight (context, C) if positions are learned, h.{i}.ln_1.weight
/// (C), h.{i}.attn.qkv.weight ((heads + 2 kv_heads) HS, C), h.{i}.attn.q_norm.weight and k_norm.weight (HS) if qk_norm,
/// h.{i}.attn.proj.weight (C, heads HS),
/// h.{i}.ln_2.weight (C), h.{i}.mlp.fc.weight (F, C), or (2F, C) with the gate first for swiglu, h.{i}.mlp.proj.weight
/// (C, F), ln_f.weight (C), lm_head.weight (V, C) unless tied; with biases, each but tables and head has .bias next to
/// .weight. A fragmented layer has the tensors of nn::FragmentedLinear in the place of weight and bias: it selects
/// softly if forward() is given a generator, as in training, else hard. A model that is made under LazyScope has shapes
/// and no memory until its parameters are read.
class Gpt {
 public:
  /// It follows all ForwardOptions.
  static constexpr ForwardSupport kSupport{
      .cache = true, .last_only = true, .lengths = true, .compute = true, .recompute = true};

  /// Makes the model, with parameters from Params. An Error if the configuration is wrong.
  Gpt(const Params&, const GptConfig&);

  /// The logits (B, T, V) of tokens (B, T), i32 or i64. An Error if T plus the length of the cache exceeds the context,
  /// if a token is outside the vocabulary, or if options contradict each other. How full a fixed cache is, the device
  /// knows: of T tokens that do not fit, the embedding of their positions or slice_update() says so when it runs,
  /// before anything is written. On a CUDA device the next read does; clear() the cache then, whose lengths went on.
  Tensor forward(const Tensor& tokens, ForwardOptions = {}) const;
  /// A cache of fixed capacity for forward() of `batch` sequences; `compute` as in ForwardOptions. A capacity of 0 is
  /// that of the context, the largest.
  KvCache make_cache(int64_t batch, int64_t capacity = 0, std::optional<DType> compute = {}) const;
  const GptConfig& config() const { return config_; }
  int64_t context() const { return config_.context; }        ///< the most positions
  int64_t vocab_size() const { return config_.vocab_size; }  ///< token ids are below it
  Device device() const { return wte_.table.device(); }
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
    Block(const Params&, const GptConfig&, size_t path_of_gpt);
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
