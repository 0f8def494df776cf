/// @file
/// ForwardOptions: how one forward pass of a model runs, and ForwardSupport: which of these ways a model has. The
/// models of models/gpt and of other programs take them; Model (model.h) checks them.
#pragma once
#include <tapegrad/models/nn/layers.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
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
  /// Those whose name fits one of the patterns, in their order (config/glob.h). `op` opens the message of the Error for
  /// no patterns, or one that matches no layer; it lists the layers.
  std::vector<NamedLinear> matching(std::string_view op, std::span<const std::string> patterns) const;
};

/// Computes the matching layers in another way from now on: their products are of this kind. Parameters, names and
/// files stay the same, so a model can be trained in one way and go on in another. Earlier copies of the model stay as
/// they were; handles (Model) are no copies. Returns the names of the layers. An Error if a pattern matches no layer,
/// or a layer was prepared for evaluation; nothing has changed then.
std::vector<std::string> replace_linears(const Linears& model, const std::vector<std::string>& patterns, LinearKind);
/// Prepares all layers of the model that are not plain (nn::Linear::prepare_for_eval), and drops their weights from
/// `params`. The model can only compute from then on: no training, no saving. An Error if all layers are plain, or one
/// is prepared already.
void prepare_for_eval(const Linears& model, const Params& params);

}  // namespace tg
