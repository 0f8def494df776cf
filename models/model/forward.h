/// @file
/// ForwardOptions of a forward pass, and ForwardSupport, the options that a model supports. Model (model.h) checks
/// them.
#pragma once
#include <tapegrad/models/nn/lora.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Options of one forward pass.
struct ForwardOptions {
  Rng* rng = nullptr;        ///< generator of dropout; null: no dropout
  KvCache* cache = nullptr;  ///< earlier positions; grows unless the call fails
  bool last_only = false;    ///< last position only: (B, 1, V)
  /// (B) i32 or i64: each sequence's tokens before padding, up to T, 1 or more (or 0 if T is 1). Padding's logits are
  /// meaningless. last_only takes each last token. A cache must be fixed, and counts tokens. Empty: T.
  Tensor lengths = {};
  /// bf16 or f32 for Linear layers, attention and activations, if narrower than the parameters, which are cast. The
  /// residual stream, norms and gradients keep the parameters' dtype; logits in bf16 are f32. Unset: all in that dtype.
  std::optional<DType> compute = {};
  /// Blocks save only inputs and run again in backward, bit for bit. Not with a cache. RecomputeScope saves less memory
  /// for less work.
  bool recompute = false;
  /// False: without LoRA's deltas, or with those of Lora::keep_reference(). An Error if merged.
  bool adapters = true;
};

/// A model's options, `static constexpr ForwardSupport kSupport`; default: only `rng`.
struct ForwardSupport {
  bool cache = false, last_only = false, lengths = false, compute = false, recompute = false, adapters = false;
};

/// A Linear layer of a model.
struct NamedLinear {
  /// Rows of a fused layer that are a layer elsewhere: attn.qkv's queries.
  struct Part {
    std::string name;  ///< "h.3.attn.q"
    nn::LoraRows rows;
  };
  std::string name;              ///< module name: "h.3.mlp.fc"
  nn::Linear* layer;             ///< valid until the model dies or moves
  std::vector<Part> parts = {};  ///< sorted by row; apply_lora() takes them as modules
  bool whole = false;            ///< new head: apply_lora() trains it whole
};

/// The Linear layers of a model with linears().
struct Linears {
  std::vector<NamedLinear> list;
  template <class M>
    requires requires(M& m) { std::vector<NamedLinear>(m.linears()); }
  Linears(M& model) : list(model.linears()) {}
  /// Layers that match a pattern (config/suggest.h), in order. With `parts`, also layers with matching parts, listed in
  /// the result's `parts` (none: the whole layer). `op` starts the Error for no patterns or one without a match; it
  /// lists the layers.
  std::vector<NamedLinear> matching(std::string_view op, std::span<const std::string> patterns,
                                    bool parts = false) const;
};

/// Sets matching layers' kind, not parameters, names or files: training may continue. Earlier copies of the model stay;
/// handles (Model) are no copies. Returns the layers' names. An Error, without changes, if a pattern matches no layer
/// or a layer was prepared for evaluation.
std::vector<std::string> replace_linears(const Linears& model, const std::vector<std::string>& patterns, LinearKind);
/// Prepares all layers that are not plain (nn::Linear::prepare_for_eval), and drops their weights: no more training or
/// saving. An Error if all are plain or one is prepared.
void prepare_for_eval(const Linears& model, const Params& params);

}  // namespace tg
