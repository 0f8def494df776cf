/// @file
/// The layers of a transformer: structs of tensors with a forward(), made from Params, without base class or train/eval
/// flag: a generator turns dropout on. Learned positions are an Embedding of the model; rotary positions are part of
/// attention.
#pragma once
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>
#include <tapegrad/ops/rope.h>

#include <functional>
#include <memory>
#include <optional>

namespace tg {

class KvCache;  // models/nn/kv_cache.h

/// Kinds of Norm.
enum class NormKind { layer_norm, rms_norm };
/// Activations of Mlp. swiglu is gated; relu2 is relu squared.
enum class Activation { gelu, gelu_tanh, silu, swiglu, relu, relu2 };
/// Position encoding: a table of embeddings, or rotation in attention.
enum class Positions { learned, rope };
/// How a Linear layer computes its GEMMs: `plain`, or in 8 bits by a mode of switchback_linear().
enum class LinearKind { plain, switchback, switchback_vector_wise, switchback_memory_efficient, fp8, fp8_e4m3 };
/// Where an Mlp drops: its result, or what the activation gives.
enum class FfDropout { output, activation };
/// Sets the kind with this name; an Error lists the names.
void from_name(std::string_view, LinearKind&);
/// Names of values.
/// @{
template <> inline constexpr EnumNames<2> kEnumNames<NormKind>{"norm", {"layer_norm", "rms_norm"}};
template <>
inline constexpr EnumNames<6> kEnumNames<Activation>{"activation",
                                                     {"gelu", "gelu_tanh", "silu", "swiglu", "relu", "relu2"}};
template <> inline constexpr EnumNames<2> kEnumNames<Positions>{"positions", {"learned", "rope"}};
template <> inline constexpr EnumNames<2> kEnumNames<FfDropout>{"ff_dropout", {"output", "activation"}};
template <> inline constexpr EnumNames<3> kEnumNames<RopeScalingKind>{"rope_scaling", {"none", "linear", "llama3"}};
template <>
inline constexpr EnumNames<6> kEnumNames<LinearKind>{
    "linear", {"plain", "switchback", "switchback-vector-wise", "switchback-memory-efficient", "fp8", "fp8-e4m3"}};
/// @}
namespace detail {
/// The mode of a kind. Throws for plain.
SwitchBackMode mode_of(LinearKind);
}  // namespace detail

namespace nn {

/// A layer's base: the scope of its ops, for errors and profiles, "gpt.h.3.mlp.fc".
struct Layer {
  const Scope* scope = nullptr;  ///< null: the caller's scope
  /// Enters the scope; call it first in forward().
  NameScope enter() const { return NameScope(scope ? scope : detail::current_scope()); }
};

struct LoraAdapter;       // lora.h
struct FragmentedLinear;  // fragmented.h

/// Options of Linear.
struct LinearOptions {
  bool bias = true;
  /// The weight's start; the bias' is 0. Unset: U(-1/sqrt(in), 1/sqrt(in)) for both, like PyTorch's nn.Linear.
  std::optional<Init> init = {};
  LinearKind kind = LinearKind::plain;
  /// > 0: a FragmentedLinear with its initialisation; needs kind plain.
  int64_t fragments = 0;
};
/// A linear layer: x weight^T + bias, or a FragmentedLinear. In 8 bits, forward and the gradient of x are quantized,
/// the weight's gradient is not (ops/quantized/switchback.h).
struct Linear : Layer {
  Tensor weight;                      ///< (out, in); empty with `blocks` and after prepare_for_eval()
  Tensor bias;                        ///< (out) or empty
  std::optional<BlockWeight> blocks;  ///< frozen weight (Params::blocks()); needs kind plain
  /// Deltas added unless merged, or null.
  std::shared_ptr<LoraAdapter> adapter;
  LinearKind kind = LinearKind::plain;  ///< GEMM kind; all have the same parameters
  std::optional<Quantized> quantized;   ///< set by prepare_for_eval()
  /// Replaces weight and bias (then empty), or null. Soft selection if forward() gets a generator, else hard.
  std::shared_ptr<const FragmentedLinear> fragmented;

  Linear() = default;
  /// Asks the Params for "weight" (out, in) and optionally "bias" (out), or for FragmentedLinear's parameters.
  Linear(const Params&, int64_t in, int64_t out, LinearOptions = {});
  /// x weight^T + bias: (..., in) -> (..., out). All are cast to `compute`, the result's dtype, if set; gradients keep
  /// their dtypes. SwitchBack quantizes the uncast weight. rng: the adapter's dropout, or null. Without `adapters` no
  /// delta; an Error if merged. `unrounded`: on a CPU, a plain layer's result is f32 in bf16 too.
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}, Rng* rng = nullptr, bool adapters = true,
                 bool unrounded = false) const;
  /// Quantizes and releases the weight (a quarter of its memory): same results, no training. Other copies and the
  /// Params still hold it (Params::drop). Otherwise evaluation quantizes per call. An Error if plain or prepared.
  void prepare_for_eval();
  bool prepared() const { return quantized.has_value(); }
  /// Sizes of the weight; 0 if there is none.
  /// @{
  int64_t in() const { return blocks ? blocks->in() : weight ? weight.size(1) : 0; }
  int64_t out() const { return blocks ? blocks->out() : weight ? weight.size(0) : 0; }
  /// @}
  std::string_view name() const { return (blocks ? blocks->parts[0].codes : weight).label(); }  ///< the weight's label
};

/// A table of vectors, indexed by id.
struct Embedding : Layer {
  Tensor table;                       ///< (V, C), named "weight"; empty with `blocks`
  std::optional<BlockWeight> blocks;  ///< frozen table (Params::blocks())
  DType dtype = DType::f32;           ///< the vectors' with `blocks`

  Embedding() = default;
  Embedding(const Params&, int64_t entries, int64_t width, Init = Init::normal(0.02));
  /// Table rows: (...) i32 or i64 -> (..., C). Throws for an id outside [0, V).
  Tensor forward(const Tensor& ids) const;
  DType out_dtype() const { return table ? table.dtype() : dtype; }  ///< forward()'s
};

/// Options of Norm.
struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  bool affine = true;  ///< has a weight, and with `bias` a bias
  bool bias = false;   ///< layer_norm only
  double eps = 1e-5;
};
/// LayerNorm or RMSNorm over the last dimension.
struct Norm : Layer {
  NormKind kind = NormKind::layer_norm;
  double eps = 1e-5;
  Tensor weight;  ///< (C) or empty; starts at 1
  Tensor bias;    ///< (C) or empty; starts at 0

  Norm() = default;
  /// Asks the Params for "weight" and "bias" (width) per the options.
  Norm(const Params&, int64_t width, NormOptions = {});
  /// (..., C) -> (..., C), in x's dtype; bf16 for f32 x and `compute` bf16.
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}) const;
  /// sum = x + branch and y = forward(sum) in one pass, all (..., C): a block's last addition in the next norm. sum has
  /// x's dtype; y is bf16 for f32 x and bf16 branch. Empty branch: sum is x, y is forward(x, compute).
  AddedNorm add(const Tensor& x, const Tensor& branch, std::optional<DType> compute = {}) const;
};

/// How one forward pass runs.
struct LayerContext {
  Rng* rng = nullptr;        ///< dropout, adapters' too; null: none
  KvCache* cache = nullptr;  ///< earlier keys and values, or null
  int64_t layer = 0;         ///< the cache's layer
  /// Position of x's first row; a fixed cache overrides it.
  int64_t position = 0;
  /// Dtype of Linear::forward(), attention and activations; unset: that of the parameters.
  std::optional<DType> compute{};
  /// (B) i32 or i64: each sequence's valid rows; padding is unseen. Empty: all. Not with a cache.
  Tensor lengths = {};
  bool adapters = true;  ///< Linear::forward() adds its delta
};

/// Options of the layers of a transformer block.
struct BlockOptions {
  int64_t heads = 1;
  /// K and V heads, each shared by heads / kv_heads query heads; 0 means heads.
  int64_t kv_heads = 0;
  int64_t head_dim = 0;        ///< HS, head size; 0: width / heads
  bool qkv_bias = false;       ///< q, k, v biases, even without `bias`
  bool qk_norm = false;        ///< RMSNorm of query and key heads, before rope
  bool qk_norm_affine = true;  ///< qk_norm has a gain
  double attn_scale = 0;       ///< AttentionOptions::scale
  double norm_eps = 1e-5;      ///< eps of qk_norm
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  int64_t ff_width = 0;  ///< Mlp's hidden size; 0: 4 width
  Activation activation = Activation::gelu;
  bool causal = false;  ///< rows see themselves and earlier ones; else all (BERT)
  bool bias = false;
  double dropout = 0;       ///< dropout of residual branches
  double attn_dropout = 0;  ///< dropout of attention weights
  FfDropout ff_dropout = FfDropout::output;
  Init init = Init::normal(0.02), init_proj = Init::normal(0.02);
  /// LinearOptions::fragments for these Params; unset: 0.
  std::function<int64_t(const Params&)> fragments = {};
};

/// Multi-head self-attention (Vaswani et al., 2017), optionally causal, with grouped keys (Ainslie et al., GQA, 2023)
/// and rotary positions. Attention weights are not stored.
struct SelfAttention : Layer {
  Linear qkv;            ///< ((heads + 2 kv_heads) HS, C): q, k, v stacked
  Linear proj;           ///< (C, heads HS)
  Norm q_norm, k_norm;   ///< norms of each head (HS), if qk_norm
  BlockOptions options;  ///< has kv_heads, head_dim, no `fragments`

  SelfAttention() = default;
  /// Throws unless heads divides width or head_dim is set, kv_heads divides heads, and HS is even for rope.
  SelfAttention(const Params&, int64_t width, const BlockOptions&);
  /// (B, T, C) -> (B, T, C). Padding rows have meaningless values.
  Tensor forward(const Tensor& x, const LayerContext& c = {}) const { return run(x, c, false); }
  /// The attention weights of forward(), (B, heads, T, keys), without dropout, by matmul() and softmax(): slow.
  Tensor weights(const Tensor& x, const LayerContext& c = {}) const { return run(x, c, true); }

 private:
  Tensor run(const Tensor& x, const LayerContext&, bool weights) const;
};

/// Feed-forward half of a block: proj(activation(fc(x))).
struct Mlp : Layer {
  Linear fc;    ///< (F, C); swiglu: (2F, C), the gate first
  Linear proj;  ///< (C, F)
  Activation activation = Activation::gelu;
  double dropout = 0;
  FfDropout place = FfDropout::output;

  Mlp() = default;
  /// The hidden size is BlockOptions::ff_width, or 4 width if that is 0.
  Mlp(const Params&, int64_t width, const BlockOptions&);
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;  ///< (..., C) -> (..., C)
};

/// dropout(x, p, *rng) if p > 0 and rng is set, else x itself.
Tensor dropout_if(const Tensor& x, double p, Rng* rng);

}  // namespace nn
}  // namespace tg
