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
  KvCache* cache = nullptr;  ///< earlier positions; appended to, unless the call fails
  bool last_only = false;    ///< compute only the last position's logits: (B, 1, V)
  /// (B) i32 or i64: the number of tokens of each sequence before its padding, 1 or more (or 0 if T is 1). Logits of
  /// padding are meaningless. last_only takes each sequence's last token. A cache, which must be fixed, counts only
  /// tokens. Empty means T.
  Tensor lengths = {};
  /// The dtype, bf16 or f32, of Linear layers, attention, activations and logits, if narrower than the parameters'.
  /// Parameters are cast where they are used. The residual stream, norms and gradients keep the parameters' dtype.
  /// Unset: everything runs in the parameters' dtype.
  std::optional<DType> compute = {};
  /// Blocks save only their inputs and run again in backward: equal gradients, bit for bit. Not with a cache.
  /// RecomputeScope saves less memory for less work.
  bool recompute = false;
  /// False: the base model, without deltas of LoRA but Lora::keep_reference(). An Error if they are merged.
  bool adapters = true;
};

/// The options that a model supports, its `static constexpr ForwardSupport kSupport`; default: only `rng`. Model
/// refuses others.
struct ForwardSupport {
  bool cache = false, last_only = false, lengths = false, compute = false, recompute = false, adapters = false;
};

/// A Linear layer of a model.
struct NamedLinear {
  /// Rows of a fused layer that other programs have as a layer: the queries of attn.qkv.
  struct Part {
    std::string name;  ///< "h.3.attn.q"
    nn::LoraRows rows;
  };
  std::string name;              ///< name of the module: "h.3.mlp.fc"
  nn::Linear* layer;             ///< valid while the model lives and is not moved
  std::vector<Part> parts = {};  ///< by row; apply_lora() takes them as modules
  bool whole = false;            ///< a new head: apply_lora() trains it whole
};

/// The Linear layers of a model with linears().
struct Linears {
  std::vector<NamedLinear> list;
  template <class M>
    requires requires(M& m) { std::vector<NamedLinear>(m.linears()); }
  Linears(M& model) : list(model.linears()) {}
  /// Layers whose names match a pattern (config/suggest.h), in order. With `parts`, also those with parts that match a
  /// pattern which does not match the layer; `parts` of the results are the matching ones, or none for a whole layer.
  /// `op` opens the Error for no patterns or one without a match, which lists the layers.
  std::vector<NamedLinear> matching(std::string_view op, std::span<const std::string> patterns,
                                    bool parts = false) const;
};

/// Sets the kind of matching layers' matmuls. Parameters, names and files do not change, so training may continue with
/// another kind. Earlier copies of the model do not change; handles (Model) are no copies. Returns the layers' names.
/// An Error, without any change, if a pattern matches no layer or a layer was prepared for evaluation.
std::vector<std::string> replace_linears(const Linears& model, const std::vector<std::string>& patterns, LinearKind);
/// Prepares all layers that are not plain (nn::Linear::prepare_for_eval), and drops their weights from `params`. The
/// model can no longer be trained or saved. An Error if all are plain or one is prepared already.
void prepare_for_eval(const Linears& model, const Params& params);

}  // namespace tg
