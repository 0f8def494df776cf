/// @file
/// ForwardOptions: how one forward pass of a model runs, and ForwardSupport: which of these ways a model has. The
/// models of models/gpt and of other programs take them; Model (model.h) checks them.
#pragma once
#include <tapegrad/models/nn/layers.h>

#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Options of one forward pass.
struct ForwardOptions {
  Rng* rng = nullptr;        ///< generator of dropout, if the model or an adapter has any; null means no dropout
  KvCache* cache = nullptr;  ///< earlier positions, to which these are added; unchanged if the call fails
  bool last_only = false;    ///< compute the logits of the last position only: (B, 1, V)
  /// (B) i32 or i64: how many of the T tokens each sequence has; padding follows them, whose logits mean nothing. Each
  /// sequence has 1 or more, or, if T is 1, none. last_only gives the logits of the last of them, and a cache counts
  /// them alone, so it must be a fixed one. Empty means T.
  Tensor lengths = {};
  /// The dtype of Linear layers, attention, activations and logits, bf16 or f32, if it is narrower than the
  /// parameters'. Parameters are cast once where they are used; the residual stream, norms and gradients of parameters
  /// keep the parameters' dtype. Unset means that everything runs in the dtype of the parameters.
  std::optional<DType> compute = {};
  /// Blocks keep their inputs only, and run again in backward: the same gradients, bit for bit. Not with a cache. To
  /// save less memory for less work, call forward() in a RecomputeScope.
  bool recompute = false;
};

/// Which options a model follows. A model states them as `static constexpr ForwardSupport kSupport`; without it, it
/// follows none but `rng`. Model refuses an option that its model does not follow.
struct ForwardSupport {
  bool cache = false, last_only = false, lengths = false, compute = false, recompute = false;
};

/// A Linear layer of a model.
struct NamedLinear {
  std::string name;   ///< name of the module: "h.3.mlp.fc"
  nn::Linear* layer;  ///< valid while the model lives and is not moved
};

/// The Linear layers of a model: apply_lora(model, ...) makes it of any model with linears().
struct Linears {
  std::vector<NamedLinear> list;
  template <class M>
    requires requires(M& m) { std::vector<NamedLinear>(m.linears()); }
  Linears(M& model) : list(model.linears()) {}
};

}  // namespace tg
