/// @file
/// Gpt: the decoder-only transformer with pre-norm blocks (Radford et al., 2019) and variants: learned or rotary
/// positions, LayerNorm or RMSNorm, GELU, SiLU or SwiGLU, grouped keys, optional biases and tied head. It can run in
/// bf16 with f32 parameters, and recompute activations. The loss is cross_entropy() of the logits.
#pragma once
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/kv_cache.h>

#include <string>

namespace tg {

/// Sizes, variants and initialisation of a Gpt.
struct GptConfig {
  int64_t vocab_size = 256;
  int64_t context = 64;  ///< most positions; rows of the learned table
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< heads of keys and values (GQA); divides heads; 0: heads
  int64_t head_dim = 0;  ///< HS; 0: width / heads, which must be whole
  int64_t width = 128;   ///< C
  int64_t ff_width = 0;  ///< F, hidden size of MLPs; 0: 4 * width
  Positions positions = Positions::learned;
  double rope_theta = 10000;  ///< for rotary positions
  RopeScaling rope_scaling = {};
  NormKind norm = NormKind::layer_norm;
  bool norm_affine = true;  ///< whether norms scale, and shift with `bias`
  Activation activation = Activation::gelu;
  bool bias = false;      ///< of all Linear layers except the head, and of LayerNorm
  bool qkv_bias = false;  ///< for queries, keys, values only; not with `bias`
  bool qk_norm = false;   ///< RMSNorm (norm_eps) of query and key heads before rope
  bool tied_head = true;  ///< whether the head shares the token table
  double dropout = 0;     ///< of embeddings, layer outputs; forward() needs a generator
  double norm_eps = 1e-5;
  /// gpt2: matrices are N(0, init_std^2), but both proj have init_std / sqrt(2 * layers). xavier: Linear layers are
  /// N(0, 2 / (in + out)), with queries, keys, values, gate and hidden layer as separate matrices; tables are N(0, 1);
  /// all are truncated at 3 standard deviations, without init_std. Norms start at 1, biases at 0.
  InitScheme init = InitScheme::gpt2;
  double init_std = 0.02;
  /// Fragments of each layer that `fragmented` matches, a FragmentedLinear with its own initialisation. 0: all are
  /// plain.
  int64_t fragments = 0;
  std::string fragmented = "h.*.mlp.*";  ///< pattern of linears() names, like LoraConfig::targets

  int64_t head_size() const { return head_dim ? head_dim : width / heads; }  ///< HS
  void validate() const;  ///< throws an Error that names the first wrong field
  bool operator==(const GptConfig&) const = default;
};

/// A JSON object with every field, indented by two spaces.
std::string to_json(const GptConfig&);

/// The model. Parameters:
/// - wte.weight (V, C), and wpe.weight (context, C) for learned positions
/// - h.{i}.ln_1.weight and h.{i}.ln_2.weight (C)
/// - h.{i}.attn.qkv.weight ((heads + 2 kv_heads) HS, C), h.{i}.attn.proj.weight (C, heads HS)
/// - h.{i}.attn.q_norm.weight and k_norm.weight (HS), if qk_norm
/// - h.{i}.mlp.fc.weight (F, C), or (2F, C) with the gate first for swiglu, h.{i}.mlp.proj.weight (C, F)
/// - ln_f.weight (C), and lm_head.weight (V, C) unless tied
///
/// With biases, all but tables and head have .bias next to .weight. A fragmented layer has the tensors of
/// nn::FragmentedLinear. It selects softly if forward() gets a generator, otherwise hard. Under LazyScope a model has
/// only shapes until its parameters are read.
class Gpt {
 public:
  /// All options.
  static constexpr ForwardSupport kSupport{
      .cache = true, .last_only = true, .lengths = true, .compute = true, .recompute = true, .adapters = true};

  /// Makes the model. An Error if the configuration is wrong.
  Gpt(const Params&, const GptConfig&);

  /// The logits (B, T, V) of tokens (B, T), i32 or i64. An Error if T plus the cache length exceeds the context, if a
  /// token is outside the vocabulary, or if options conflict. Only the device knows the fill of a fixed cache. If T
  /// tokens do not fit, the position embedding or slice_update() throws when it runs, before any write. On CUDA the
  /// next read throws, and the cache's lengths have advanced: clear() it.
  Tensor forward(const Tensor& tokens, ForwardOptions = {}) const;
  /// A fixed cache for `batch` sequences; `compute` as in ForwardOptions. Capacity 0 is the context, the largest.
  KvCache make_cache(int64_t batch, int64_t capacity = 0, std::optional<DType> compute = {}) const;
  const GptConfig& config() const { return config_; }
  int64_t context() const { return config_.context; }        ///< the most positions
  int64_t vocab_size() const { return config_.vocab_size; }  ///< token ids are below it
  Device device() const { return wte_.table.device(); }
  /// The Linear layers in the order of forward(), with the head unless tied. With RoPE, attn.qkv has the parts attn.q,
  /// attn.k and attn.v; with SwiGLU, mlp.fc has mlp.gate and mlp.up.
  std::vector<NamedLinear> linears();

 private:
  // The residual stream x + branch, each (B, T, C): the next norm adds them.
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
