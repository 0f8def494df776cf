/// @file
/// LoRA on a model: patterns of names choose which of its Linear layers get a delta (models/nn/lora.h); all of them are
/// merged and unmerged together. Their parameters are apart from those of the model, so a Trainer or an optimiser can
/// train them alone. Files are in models/io/adapter.h.
#pragma once
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/lora.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Which layers get an adapter, and of what size.
struct LoraConfig {
  /// Patterns of module names. Each block h.i of a Gpt has attn.qkv (queries, keys and values are one weight),
  /// attn.proj, mlp.fc and mlp.proj; lm_head is a module unless it is tied. An asterisk stands for any characters, also
  /// for dots: `*.mlp.*`.
  std::vector<std::string> targets = {"h.*.attn.qkv"};
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< drawn from ForwardOptions::rng
  uint64_t seed = 0;   ///< of the A matrices, together with the module's name

  nn::LoraOptions options() const { return {.rank = rank, .alpha = alpha, .dropout = dropout}; }
  bool operator==(const LoraConfig&) const = default;
};

/// The adapters of one model. Copies are handles to the same adapters.
class Lora {
 public:
  /// An adapted layer.
  struct Module {
    std::string name;
    nn::LoraLinear layer;
  };

  const LoraConfig& config() const { return config_; }
  const std::vector<Module>& modules() const { return modules_; }  ///< in the model's order
  /// The adapters' parameters: `<module>.lora_a` (in, r) and `<module>.lora_b` (r, out) of each module, f32, or f64 if
  /// the model is.
  const Params& params() const { return params_; }
  /// Of the weights that the adapters are trained over.
  DType base_dtype() const { return base_dtype_; }

  /// Adds all deltas to their weights, as nn::LoraLinear::merge() does. All or nothing.
  void merge();
  /// Restores all weights, bit for bit. All or nothing.
  void unmerge();
  bool merged() const;

 private:
  friend Lora apply_lora(const Linears&, const Params&, const LoraConfig&);
  friend Lora load_adapter(const std::string& path, const Linears&, const Params&);  // adapter.h
  Lora(LoraConfig c, Params p, DType base) : config_(std::move(c)), params_(std::move(p)), base_dtype_(base) {}
  LoraConfig config_;
  Params params_;
  DType base_dtype_;
  std::vector<Module> modules_;
};

/// The layers of a model that match a target, in their order. An Error if a pattern matches no layer (it lists the
/// layers), if LoraOptions::validate() refuses the options for one, or if one has an adapter already.
std::vector<NamedLinear> lora_targets(const Linears& model, const LoraConfig&);

/// Gives each of the lora_targets() an adapter that adds nothing yet, and freezes all of `base`, the parameters of the
/// model. Earlier copies of the model have no adapters, and see merged weights; handles (Model) are no copies. An Error
/// of lora_targets(), or if base does not have the weights of the targets; nothing has changed then.
Lora apply_lora(const Linears& model, const Params& base, const LoraConfig& = {});

}  // namespace tg
