/// @file
/// The layers of a transformer: structs of tensors with a forward(), made from Params. No base class to override, no
/// train/eval flag (dropout happens when a generator is passed). Learned positions are an Embedding of the model;
/// rotary ones are part of attention. Used by models/gpt and by own models.
#pragma once
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/norm.h>

#include <memory>

namespace tg {

class KvCache;  ///< models/nn/kv_cache.h

enum class NormKind { layer_norm, rms_norm };
enum class Activation { gelu, gelu_tanh, silu, swiglu };
enum class Positions { learned, rope };
std::string_view name_of(NormKind);
std::string_view name_of(Activation);
std::string_view name_of(Positions);
/// The inverse; an Error lists the names.
NormKind norm_from_name(std::string_view);
Activation activation_from_name(std::string_view);
Positions positions_from_name(std::string_view);

namespace nn {  ///< tg::Linear and tg::Embedding are the ops

/// What every layer has: the scope in which its ops are emitted, so that an error or a profile says "gpt.h.3.mlp.fc".
struct Layer {
  const Scope* scope = nullptr;  ///< null: that of the caller
  NameScope enter() const { return NameScope(scope ? scope : current_scope()); }
};

struct LoraAdapter;  ///< lora.h

struct LinearOptions {
  bool bias = false;
  Init init = Init::normal(0.02);
};
struct Linear : Layer {
  Tensor weight;                         ///< (out, in)
  Tensor bias;                           ///< (out) or empty; starts at 0
  std::shared_ptr<LoraAdapter> adapter;  ///< its delta is added to the result, unless it is merged; null: there is none

  Linear() = default;
  Linear(const Params&, int64_t in, int64_t out, LinearOptions = {});
  /// (..., in) -> (..., out): x weight^T + bias. bf16: all three are cast to it first, and so is the result; gradients
  /// arrive in their own dtypes. f32: nothing is cast. The adapter's dropout draws from rng; null: there is none.
  Tensor forward(const Tensor& x, DType compute = DType::f32, Rng* rng = nullptr) const;
};

struct Embedding : Layer {
  Tensor table;  ///< (V, C), named "weight"

  Embedding() = default;
  Embedding(const Params&, int64_t entries, int64_t width, Init = Init::normal(0.02));
  Tensor forward(const Tensor& ids) const;  ///< (...) i32 or i64 -> (..., C); an Error for an id outside [0, V)
};

struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  bool affine = true;  ///< scale, and shift with bias
  bool bias = false;   ///< layer_norm only
  double eps = 1e-5;
};
struct Norm : Layer {
  NormKind kind = NormKind::layer_norm;
  double eps = 1e-5;
  Tensor weight;  ///< (C) or empty; starts at 1
  Tensor bias;    ///< (C) or empty; starts at 0

  Norm() = default;
  Norm(const Params&, int64_t width, NormOptions = {});
  Tensor forward(const Tensor& x) const;  ///< over the last dimension: (..., C) -> (..., C)
  /// x + branch and what forward() makes of it, in one pass. An empty branch adds nothing: the sum is x.
  AddedNorm add(const Tensor& x, const Tensor& branch) const;
};

/// How one forward pass runs, for the layers that care.
struct LayerContext {
  Rng* rng = nullptr;          ///< dropout draws from it, that of adapters too; null: no dropout
  KvCache* cache = nullptr;    ///< keys and values of the positions before x; null: there are none
  int64_t layer = 0;           ///< whose keys and values in the cache
  int64_t position = 0;        ///< of the first row of x
  DType compute = DType::f32;  ///< of Linear::forward, attention and activations
};

struct BlockOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  ///< of keys and values, each shared by heads / kv_heads queries; 0: as heads
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  int64_t ff_width = 0;  ///< of Mlp; 0: four times the width
  Activation activation = Activation::gelu;
  bool bias = false;
  double dropout = 0;  ///< of what a layer adds to the residual stream
  Init init = Init::normal(0.02), init_proj = Init::normal(0.02);
};

/// Causal multi-head self-attention (Vaswani et al. 2017), with grouped keys (Ainslie et al., GQA, 2023) and rotary
/// positions if so asked. Dropout falls on its result only, never on the attention weights, which are not kept in
/// memory.
struct SelfAttention : Layer {
  Linear qkv;   ///< ((heads + 2 kv_heads) HS, C): queries, keys, values, one after the other
  Linear proj;  ///< (C, C)
  int64_t heads = 1, kv_heads = 1;
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  double dropout = 0;

  SelfAttention() = default;
  /// An Error unless heads divides width and kv_heads divides heads, and HS = width / heads is even under rope.
  SelfAttention(const Params&, int64_t width, const BlockOptions&);
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;  ///< (B, T, C) -> (B, T, C)
};

/// proj(activation(fc(x)))
struct Mlp : Layer {
  Linear fc;    ///< (F, C); of swiglu (2F, C), the gate first
  Linear proj;  ///< (C, F)
  Activation activation = Activation::gelu;
  double dropout = 0;

  Mlp() = default;
  Mlp(const Params&, int64_t width, const BlockOptions&);
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;  ///< (..., C) -> (..., C)
};

/// x with dropout when p > 0 and there is a generator, else x itself.
Tensor dropout_if(const Tensor& x, double p, Rng* rng);

}  // namespace nn
}  // namespace tg
