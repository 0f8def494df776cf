/// @file
/// The layers of a transformer: structs of tensors with a forward(), made from Params. There is no base class to
/// override and no train/eval flag: dropout happens when a generator is passed. Learned positions are an Embedding of
/// the model; rotary positions are a part of attention. models/gpt and own models use it.
#pragma once
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

/// The kinds of Norm.
enum class NormKind { layer_norm, rms_norm };
/// The activations of Mlp. swiglu has a gate.
enum class Activation { gelu, gelu_tanh, silu, swiglu, relu };
/// How a model knows positions: by a table of embeddings, or by rotation in attention.
enum class Positions { learned, rope };
/// The name of a value: "layer_norm", "gelu", "rope", "llama3".
/// @{
std::string_view name_of(RopeScalingKind);
std::string_view name_of(NormKind);
std::string_view name_of(Activation);
std::string_view name_of(Positions);
/// @}
/// The value with this name; an Error lists the names.
/// @{
NormKind norm_from_name(std::string_view);
Activation activation_from_name(std::string_view);
Positions positions_from_name(std::string_view);
RopeScalingKind rope_scaling_from_name(std::string_view);
/// @}
/// How a Linear layer computes its products: `plain`, or by codes of 8 bits, as switchback_linear() does in one of its
/// modes.
enum class LinearKind { plain, switchback, switchback_vector_wise, switchback_memory_efficient, fp8, fp8_e4m3 };
/// "plain", "switchback", "switchback-vector-wise", "switchback-memory-efficient", "fp8" or "fp8-e4m3".
std::string_view name_of(LinearKind);
/// Sets the kind with this name; an Error lists the names.
void from_name(std::string_view, LinearKind&);
/// The mode of a kind that is not plain.
SwitchBackMode mode_of(LinearKind);

namespace nn {

/// The base of every layer: the scope in which its ops are called, so that an error or a profile says "gpt.h.3.mlp.fc".
struct Layer {
  const Scope* scope = nullptr;  ///< null means the scope of the caller
  /// Enters the scope; the first line of a forward().
  NameScope enter() const { return NameScope(scope ? scope : current_scope()); }
};

struct LoraAdapter;       // lora.h
struct FragmentedLinear;  // fragmented.h

/// Options of Linear.
struct LinearOptions {
  bool bias = true;
  /// How the weight starts; the bias then starts at 0. Unset: both are drawn from U(-1/sqrt(in), 1/sqrt(in)), as
  /// PyTorch's nn.Linear does.
  std::optional<Init> init = {};
  LinearKind kind = LinearKind::plain;
  int64_t fragments = 0;  ///< more than 0: a FragmentedLinear, with its own initialisation; the kind is plain then
};
/// A linear layer: x weight^T + bias, or a FragmentedLinear in its place.
struct Linear : Layer {
  Tensor weight;                         ///< (out, in); empty after prepare_for_eval()
  Tensor bias;                           ///< (out) or empty
  std::shared_ptr<LoraAdapter> adapter;  ///< a delta that is added to the result unless it is merged; may be null
  LinearKind kind = LinearKind::plain;   ///< how products are computed; the parameters are the same for all
  std::optional<Quantized> codes;        ///< of the weight, after prepare_for_eval()
  /// What computes in the place of weight and bias, which are empty then; null in other layers. It selects softly if
  /// forward() is given a generator, as in training, else hard.
  std::shared_ptr<const FragmentedLinear> fragmented;

  Linear() = default;
  /// Asks the Params for "weight" (out, in), and "bias" (out) if the options say so; or for those of FragmentedLinear.
  Linear(const Params&, int64_t in, int64_t out, LinearOptions = {});
  /// x weight^T + bias: (..., in) -> (..., out). x, weight and bias are cast to `compute`, and the result has that
  /// dtype; gradients arrive in their own dtypes. If `compute` is unset, nothing is cast. A SwitchBack layer makes its
  /// codes of the weight as it is. The adapter's dropout draws from rng; null means no dropout.
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}, Rng* rng = nullptr) const;
  /// Keeps the codes of the weight, a quarter of its memory, and lets go of the weight: from now on the layer computes
  /// the same results, and nothing can be trained through it. Other copies of the layer keep the weight, and so do the
  /// Params (Params::drop). Without it, evaluation makes the codes anew at each call. An Error if the layer is plain or
  /// prepared already.
  void prepare_for_eval();
  bool prepared() const { return codes.has_value(); }
};

/// Options of SwitchBackLinear.
struct SwitchBackOptions {
  SwitchBackMode mode = SwitchBackMode::global;
  bool bias = true;
  std::optional<Init> init = {};  ///< as in LinearOptions
};
/// A linear layer by codes of 8 bits: forward and the gradient of x; the gradient of the weight is in full precision
/// (ops/quantized/switchback.h). It is a Linear, so linears() of a model can list it, and files are the same.
struct SwitchBackLinear : Linear {
  SwitchBackLinear() = default;
  SwitchBackLinear(const Params&, int64_t in, int64_t out, SwitchBackOptions = {});
};

/// A table of vectors, chosen by id.
struct Embedding : Layer {
  Tensor table;  ///< (V, C), named "weight"

  Embedding() = default;
  /// Asks the Params for "weight" (entries, width).
  Embedding(const Params&, int64_t entries, int64_t width, Init = Init::normal(0.02));
  /// The rows of the table: (...) i32 or i64 -> (..., C). An Error for an id outside [0, V).
  Tensor forward(const Tensor& ids) const;
};

/// Options of Norm.
struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  bool affine = true;  ///< whether it has a weight, and with `bias` a bias
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
  /// Asks the Params for "weight" and "bias" (width), as the options say.
  Norm(const Params&, int64_t width, NormOptions = {});
  /// (..., C) -> (..., C), in x's dtype, or in bf16 for an f32 x and that `compute`.
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}) const;
  /// sum = x + branch and y = forward(sum), in one pass over memory: x and branch (..., C) -> sum and y (..., C). A
  /// transformer block leaves its last addition to the next norm this way. The sum has x's dtype. A branch in bf16 may
  /// be added to an f32 x; y is in bf16 then. If branch is empty, sum is x, and y is forward(x, compute).
  AddedNorm add(const Tensor& x, const Tensor& branch, std::optional<DType> compute = {}) const;
};

/// How one forward pass runs.
struct LayerContext {
  Rng* rng = nullptr;              ///< generator of dropout, that of adapters too; null means no dropout
  KvCache* cache = nullptr;        ///< keys and values of earlier positions; null if there are none
  int64_t layer = 0;               ///< number of the layer in the cache
  int64_t position = 0;            ///< position of the first row of x, unless a fixed cache has those of its sequences
  std::optional<DType> compute{};  ///< of Linear::forward, attention and activations; unset means the parameters' dtype
  /// (B) i32 or i64: the rows of x that each sequence has; those that follow are padding, which no other row sees.
  /// Empty means all. Not with a cache.
  Tensor lengths = {};
};

/// Options of the layers of a transformer block.
struct BlockOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;    ///< heads of keys and values, each shared by heads / kv_heads queries; 0 means heads
  int64_t head_dim = 0;    ///< HS, the size of a head; 0 means width / heads
  bool qkv_bias = false;   ///< a bias of queries, keys and values, also if `bias` is false
  bool qk_norm = false;    ///< RMSNorm of each head of queries and keys, before rope
  double norm_eps = 1e-5;  ///< of qk_norm
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  int64_t ff_width = 0;  ///< hidden size of Mlp; 0 means four times the width
  Activation activation = Activation::gelu;
  bool causal = true;  ///< a row sees itself and those before it; false, as in BERT: all rows
  bool bias = false;
  double dropout = 0;  ///< of what a layer adds to the residual stream
  Init init = Init::normal(0.02), init_proj = Init::normal(0.02);
  /// LinearOptions::fragments of the layer whose parameters these are; unset: 0.
  std::function<int64_t(const Params&)> fragments = {};
};

/// Multi-head self-attention (Vaswani et al. 2017), causal or not, with grouped keys (Ainslie et al., GQA, 2023) and
/// rotary positions as options. Dropout applies to its result only, never to the attention weights, which are not kept
/// in memory.
struct SelfAttention : Layer {
  Linear qkv;           ///< ((heads + 2 kv_heads) HS, C): queries, keys, values, one after the other
  Linear proj;          ///< (C, heads HS)
  Norm q_norm, k_norm;  ///< of each head (HS), if qk_norm
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  bool qk_norm = false;
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool causal = true;
  double dropout = 0;

  SelfAttention() = default;
  /// An Error unless heads divides width or head_dim is set, kv_heads divides heads, and HS is even under rope.
  SelfAttention(const Params&, int64_t width, const BlockOptions&);
  /// (B, T, C) -> (B, T, C). Rows of padding are computed too, and mean nothing.
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;
};

/// The feed-forward part of a block: proj(activation(fc(x))).
struct Mlp : Layer {
  Linear fc;    ///< (F, C); of swiglu (2F, C), the gate first
  Linear proj;  ///< (C, F)
  Activation activation = Activation::gelu;
  double dropout = 0;

  Mlp() = default;
  /// The hidden size is BlockOptions::ff_width, or four times the width.
  Mlp(const Params&, int64_t width, const BlockOptions&);
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;  ///< (..., C) -> (..., C)
};

/// dropout(x, p, *rng) if p > 0 and there is a generator, else x itself.
Tensor dropout_if(const Tensor& x, double p, Rng* rng);

}  // namespace nn
}  // namespace tg
