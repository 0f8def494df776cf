/// @file
/// Gpt: the decoder-only transformer with pre-norm blocks (Radford et al., 2019) and variants: learned or rotary
/// positions, LayerNorm or RMSNorm, GELU, SiLU or SwiGLU, grouped keys, optional biases, tied head.
#pragma once
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/loss.h>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tg {

struct Batch;  // models/data/batch.h

/// Sizes, variants and initialisation of a Gpt.
struct GptConfig {
  int64_t vocab_size = 256;
  int64_t context = 64;  ///< maximum number of positions
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< heads of keys, values (GQA); divides heads; 0: heads
  int64_t head_dim = 0;  ///< HS; 0: width / heads, a whole number
  int64_t width = 128;   ///< C
  int64_t ff_width = 0;  ///< F, MLPs' hidden size; 0: 4 * width
  Positions positions = Positions::learned;
  double rope_theta = 10000;  ///< rotary positions' base
  RopeScaling rope_scaling = {};
  NormKind norm = NormKind::layer_norm;
  bool norm_affine = true;  ///< norms scale, and shift with `bias`
  Activation activation = Activation::gelu;
  bool bias = false;            ///< biases of LayerNorm and all Linear except the head
  bool qkv_bias = false;        ///< query, key, value biases only; not with `bias`
  bool qk_norm = false;         ///< RMSNorm (norm_eps) of query and key heads before rope
  bool qk_norm_affine = true;   ///< qk_norm has a gain
  double attn_scale = 0;        ///< factor of attention's scores; 0: 1 / sqrt(HS)
  bool embedding_norm = false;  ///< a norm of the embeddings, before their dropout
  double logit_cap = 0;         ///< > 0: logits x become cap x / sqrt(x^2 + cap^2)
  bool tied_head = true;        ///< lm_head shares the token table
  int64_t classes = 0;          ///< outputs of `score`, which replaces lm_head; 0: none
  double dropout = 0;           ///< the next three, if -1; needs a generator
  double attn_dropout = -1, resid_dropout = -1, embd_dropout = -1;  ///< attention weights, branches, embeddings
  FfDropout ff_dropout = FfDropout::output;                         ///< resid_dropout's place in MLPs
  bool head_bias = false;                                           ///< lm_head.bias, also if tied
  double norm_eps = 1e-5;
  /// gpt2: matrices are N(0, init_std^2), but both proj have init_std / sqrt(2 * layers). xavier: Linear layers are
  /// N(0, 2 / (in + out)), with queries, keys, values, gate and hidden layer as separate matrices; tables are N(0, 1);
  /// all are truncated at 3 standard deviations, without init_std. fan_in: Linear layers are N(0, init_std^2 / in),
  /// tables N(0, 1). Norms start at 1, biases at 0.
  InitScheme init = InitScheme::gpt2;
  double init_std = 0.02;
  bool zero_proj = false;  ///< both proj and an untied head start at 0
  /// Fragments of each FragmentedLinear that `fragmented` matches. 0: none.
  int64_t fragments = 0;
  std::string fragmented = "h.*.mlp.*";  ///< linears() names, as LoraConfig::targets

  double dropout_of(double rate) const { return rate == -1 ? dropout : rate; }  ///< attn_dropout, ...
  int64_t head_size() const { return head_dim ? head_dim : width / heads; }     ///< HS
  GptConfig with_sizes() const;  ///< kv_heads, head_dim, ff_width above 0
  void validate() const;         ///< an Error names the first wrong field
  bool operator==(const GptConfig&) const = default;
};

/// Calls f(name, field, help) for each field of a GptConfig in order.
template <class Config, class F>
  requires std::derived_from<std::remove_const_t<Config>, GptConfig>
void visit_fields(Config& c, F&& f) {
  f("vocab_size", c.vocab_size, "token ids of the model, 0: those of the tokenizer");
  f("context", c.context, "tokens that the model sees at once");
  f("layers", c.layers, "transformer blocks");
  f("heads", c.heads, "attention heads; they divide the width");
  f("kv_heads", c.kv_heads, "heads of keys and values; they divide the heads, 0: equal to heads");
  f("width", c.width, "size of the residual stream");
  f("ff_width", c.ff_width, "hidden size of the MLPs, 0: 4 * width");
  f("positions", c.positions, "learned or rope");
  f("rope_theta", c.rope_theta, "base of the angles of rope");
  f("norm", c.norm, "layer_norm or rms_norm");
  f("norm_affine", c.norm_affine, "norms scale, and shift with bias");
  f("activation", c.activation, "gelu, gelu_tanh, silu, swiglu, relu, or relu2 (relu squared)");
  f("bias", c.bias, "biases in Linear layers and LayerNorm");
  f("tied_head", c.tied_head, "the head's weight is the token table");
  f("dropout", c.dropout, "part of the activations dropped in training");
  f("norm_eps", c.norm_eps, "added to the variance in norms");
  f("init", c.init, "gpt2, xavier or fan_in");
  f("init_std", c.init_std, "standard deviation of new weights of init gpt2; of init fan_in, times sqrt(in)");
  f("head_dim", c.head_dim, "size of a head, 0: width / heads");
  f("qkv_bias", c.qkv_bias, "biases of queries, keys and values alone");
  f("qk_norm", c.qk_norm, "RMSNorm of each head of queries and keys");
  f("rope_scaling", c.rope_scaling.kind, "none, linear or llama3: frequencies for a longer context");
  f("rope_factor", c.rope_scaling.factor, "by which rope_scaling divides frequencies");
  f("rope_low_freq", c.rope_scaling.low_freq,
    "of llama3: frequencies with more waves in the original context are kept in part");
  f("rope_high_freq", c.rope_scaling.high_freq,
    "of llama3: frequencies with more waves in the original context are kept");
  f("rope_original_context", c.rope_scaling.original_context, "of llama3: context of the training without scaling");
  f("fragments", c.fragments, "of each fragmented layer, 0: no layer is fragmented");
  f("fragmented", c.fragmented, "pattern of the Linear layers that are fragmented");
  f("attn_dropout", c.attn_dropout, "part of the attention weights dropped in training, -1: dropout");
  f("resid_dropout", c.resid_dropout, "part of what blocks add, dropped in training, -1: dropout");
  f("embd_dropout", c.embd_dropout, "part of the embeddings dropped in training, -1: dropout");
  f("ff_dropout", c.ff_dropout, "place of resid_dropout in MLPs: output, or activation");
  f("head_bias", c.head_bias, "bias of the head");
  f("rope_fraction", c.rope_scaling.fraction, "part of each head's pairs that rope rotates");
  f("qk_norm_affine", c.qk_norm_affine, "qk_norm has a gain");
  f("attn_scale", c.attn_scale, "factor of the attention scores, 0: 1 / sqrt(head size)");
  f("embedding_norm", c.embedding_norm, "a norm of the embeddings");
  f("logit_cap", c.logit_cap, "bound of the logits: cap * x / sqrt(x^2 + cap^2), 0: none");
  f("zero_proj", c.zero_proj, "projections that end a branch, and an untied head, start at 0");
  if constexpr (requires { f.optional("", c.classes); }) f.optional("classes", c.classes);  // not a run's setting
}
namespace detail {
/// Reads a configuration as config_from_json() does. Errors begin with "gpt_config".
GptConfig gpt_config_from_json(std::string_view text, ConfigText = {});
}  // namespace detail

/// Model. Parameters:
/// - wte.weight (V, C), and wpe.weight (context, C) for learned positions; ln_emb.weight (C) for embedding_norm
/// - h.{i}.ln_1.weight and h.{i}.ln_2.weight (C)
/// - h.{i}.attn.qkv.weight ((heads + 2 kv_heads) HS, C), h.{i}.attn.proj.weight (C, heads HS)
/// - h.{i}.attn.q_norm.weight and k_norm.weight (HS), if qk_norm_affine
/// - h.{i}.mlp.fc.weight (F, C), or (2F, C) with the gate first for swiglu, h.{i}.mlp.proj.weight (C, F)
/// - ln_f.weight (C), and lm_head.weight (V, C) unless tied, or score.weight (classes, C)
///
/// With biases, all but tables and head have .bias next to .weight, and the head with head_bias. A fragmented layer has
/// the tensors of nn::FragmentedLinear. It selects softly if forward() gets a generator, otherwise hard. Under
/// LazyScope a model has only shapes until its parameters are read.
class Gpt {
 public:
  /// All options.
  static constexpr ForwardSupport kSupport{
      .cache = true, .last_only = true, .lengths = true, .compute = true, .recompute = true, .adapters = true};

  /// An Error if the configuration is wrong.
  Gpt(const Params&, const GptConfig&);

  /// Logits (B, T, V) of tokens (B, T), i32 or i64; f32 in bf16 if capped, and on the CPU if the head is plain. An
  /// Error if T plus the cache length exceeds the context, if a token is outside the vocabulary, or if
  /// options conflict. If T tokens exceed a fixed cache, the embedding or slice_update() throws before any write; on
  /// CUDA the next read throws, after the lengths advanced: clear() the cache. With classes: (B, classes), of each last
  /// token; a cache and last_only are Errors.
  Tensor forward(const Tensor& tokens, ForwardOptions o = {}) const { return run(tokens, std::move(o), true); }
  /// cross_entropy() of the logits over the targets (B, T) (or (B) with classes) except Batch::kIgnoreIndex. A head
  /// without bias, adapter, fragments and cap makes no logits: linear_cross_entropy(). Options and Errors: forward().
  Tensor loss(const Batch&, const ForwardOptions& = {}, Reduction = Reduction::mean) const;
  /// Head's input: hidden states (B, T, C) after the last norm, or (B, 1, C) with last_only, in `compute` if set.
  /// Options and Errors: forward() without classes.
  Tensor hidden(const Tensor& tokens, ForwardOptions o = {}) const { return run(tokens, std::move(o), false); }
  /// A block's attention weights, (B, NH, T, T), without dropout, by matmul() and softmax(): slow. An Error if there is
  /// no such block, with a cache, or as for hidden().
  Tensor attention_weights(const Tensor& tokens, int64_t block, ForwardOptions = {}) const;
  /// A fixed cache for `batch` sequences; `compute` as in ForwardOptions. Capacity 0 is the context, the largest.
  KvCache make_cache(int64_t batch, int64_t capacity = 0, std::optional<DType> compute = {}) const;
  /// The model with a shorter context, of copies of its parameters: learned positions beyond it go. An Error if the
  /// context is outside [1, the present one], or with adapters.
  std::pair<Params, Gpt> crop_context(const Params& own, int64_t context) const;
  const GptConfig& config() const { return config_; }
  int64_t context() const { return config_.context; }        ///< maximum number of positions
  int64_t vocab_size() const { return config_.vocab_size; }  ///< token ids are below it
  Device device() const { return (wte_.blocks ? wte_.blocks->parts[0].codes : wte_.table).device(); }
  /// The Linear layers in the order of forward(), with the head unless tied. With RoPE, attn.qkv
  /// has the parts attn.q, attn.k and attn.v; with SwiGLU, mlp.fc has mlp.gate and mlp.up.
  std::vector<NamedLinear> linears();

 private:
  // Residual stream x + branch, (B, T, C): the next norm adds.
  struct Stream {
    Tensor x, branch;  // no branch: x
  };
  struct Block : nn::Layer {
    nn::Norm ln_1, ln_2;
    nn::SelfAttention attn;
    nn::Mlp mlp;
    Block(const Params&, const GptConfig&, size_t path_of_gpt);
    Stream forward(Stream, const nn::LayerContext&) const;
  };
  void check(const Tensor& tokens, const ForwardOptions&) const;
  bool plain_head() const { return head_.kind == LinearKind::plain && head_.out() && !head_.adapter; }
  Tensor run(const Tensor& tokens, ForwardOptions, bool with_head, int64_t weights_of = -1) const;
  GptConfig config_;
  nn::Layer layer_;
  nn::Embedding wte_, wpe_;         // no wpe_ table unless positions are learned
  std::optional<nn::Norm> ln_emb_;  // embedding_norm
  std::vector<Block> blocks_;
  nn::Norm ln_f_;
  nn::Linear head_;
};

}  // namespace tg
