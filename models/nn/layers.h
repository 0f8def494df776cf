// The layers of a transformer: structs of tensors with a forward(), made from Params. No base class to override, no
// train/eval flag (dropout happens when a generator is passed), no positions here. Used by models/gpt and by own
// models.
#pragma once
#include <tapegrad/models/nn/module.h>

namespace tg {

class KvCache;  // models/gpt/kv_cache.h

enum class NormKind { layer_norm, rms_norm };
enum class Activation { gelu, gelu_tanh, silu };
std::string_view name_of(NormKind);
std::string_view name_of(Activation);
// The inverse; an Error lists the names.
NormKind norm_from_name(std::string_view);
Activation activation_from_name(std::string_view);

namespace nn {  // tg::Linear and tg::Embedding are the ops

// What every layer has: the scope in which its ops are emitted, so that an error or a profile says "gpt.h.3.mlp.fc".
struct Layer {
  const Scope* scope = nullptr;  // null: that of the caller
  InScope enter() const { return InScope(scope ? scope : current_scope()); }
};

struct LinearOptions {
  bool bias = false;
  Init init = Init::normal(0.02);
};
struct Linear : Layer {
  Tensor weight;  // (out, in)
  Tensor bias;    // (out) or empty; starts at 0

  Linear() = default;
  Linear(const Params&, int64_t in, int64_t out, LinearOptions = {});
  Tensor forward(const Tensor& x) const;  // (..., in) -> (..., out): x weight^T + bias
};

struct Embedding : Layer {
  Tensor table;  // (V, C), named "weight"

  Embedding() = default;
  Embedding(const Params&, int64_t entries, int64_t width, Init = Init::normal(0.02));
  Tensor forward(const Tensor& ids) const;  // (...) i32 or i64 -> (..., C); an Error for an id outside [0, V)
};

struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  bool bias = false;  // layer_norm only
  double eps = 1e-5;
};
struct Norm : Layer {
  NormKind kind = NormKind::layer_norm;
  double eps = 1e-5;
  Tensor weight;  // (C), starts at 1
  Tensor bias;    // (C) or empty; starts at 0

  Norm() = default;
  Norm(const Params&, int64_t width, NormOptions = {});
  Tensor forward(const Tensor& x) const;  // over the last dimension: (..., C) -> (..., C)
};

// How one forward pass runs, for the layers that care.
struct LayerContext {
  Rng* rng = nullptr;        // dropout draws from it; null: no dropout
  KvCache* cache = nullptr;  // keys and values of the positions before x; null: there are none
  int64_t layer = 0;         // whose keys and values in the cache
};

struct BlockOptions {
  int64_t heads = 1;
  int64_t ff_width = 0;  // of Mlp; 0: four times the width
  Activation activation = Activation::gelu;
  bool bias = false;
  double dropout = 0;  // of what a layer adds to the residual stream
  Init init = Init::normal(0.02), init_proj = Init::normal(0.02);
};

// Causal multi-head self-attention (Vaswani et al. 2017). Dropout falls on its result only, never on the attention
// weights, which are not kept in memory.
struct SelfAttention : Layer {
  Linear qkv;   // (3C, C): queries, keys, values, one after the other
  Linear proj;  // (C, C)
  int64_t heads = 1;
  double dropout = 0;

  SelfAttention() = default;
  SelfAttention(const Params&, int64_t width, const BlockOptions&);  // an Error unless heads divides width
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;   // (B, T, C) -> (B, T, C)
};

// proj(activation(fc(x)))
struct Mlp : Layer {
  Linear fc;    // (F, C)
  Linear proj;  // (C, F)
  Activation activation = Activation::gelu;
  double dropout = 0;

  Mlp() = default;
  Mlp(const Params&, int64_t width, const BlockOptions&);
  Tensor forward(const Tensor& x, const LayerContext& = {}) const;  // (..., C) -> (..., C)
};

// x with dropout when p > 0 and there is a generator, else x itself.
Tensor dropout_if(const Tensor& x, double p, Rng* rng);

}  // namespace nn
}  // namespace tg
