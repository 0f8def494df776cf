/// @file
/// LoRA on a Gpt: which of its Linear layers get a delta (nn/lora.h), by patterns of their names, and all of them
/// merged and unmerged together. Their parameters are apart from those of the model: a Trainer or an optimiser that
/// gets them trains them alone. Files are in models/io/adapter.h.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/nn/lora.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

struct LoraConfig {
  /// Patterns of module names, of which those in h.<i> are attn.qkv (queries, keys and values are one weight),
  /// attn.proj, mlp.fc and mlp.proj, and one is lm_head, unless it is tied. * stands for any characters, dots too:
  /// "*.mlp.*".
  std::vector<std::string> targets = {"h.*.attn.qkv"};
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< drawn by the generator that Gpt::forward() is given
  uint64_t seed = 0;   ///< of A, by the module's name

  nn::LoraOptions options() const { return {.rank = rank, .alpha = alpha, .dropout = dropout}; }
  bool operator==(const LoraConfig&) const = default;
};

/// The adapters of one model. Copies are handles to the same.
class GptLora {
 public:
  struct Module {
    std::string name;
    nn::LoraLinear layer;
  };

  const LoraConfig& config() const { return config_; }
  const std::vector<Module>& modules() const { return modules_; }  ///< in the model's order
  /// <module>.lora_a (in, r) and <module>.lora_b (r, out) of each, f32, or f64 if the model is.
  const Params& params() const { return params_; }

  /// As nn::LoraLinear does, all of them or, on an Error, none.
  void merge();
  void unmerge();
  bool merged() const { return modules_.front().layer.merged(); }

 private:
  friend GptLora apply_lora(Gpt&, const Params&, const LoraConfig&);
  GptLora(LoraConfig c, Params p) : config_(std::move(c)), params_(std::move(p)) {}
  LoraConfig config_;
  Params params_;
  std::vector<Module> modules_;
};

/// The Linear layers that match a target, in the model's order. An Error when a pattern matches no module (it lists
/// those that there are), of LoraOptions::validate() with the name of the module, or when the model has adapters
/// already.
std::vector<Gpt::NamedLinear> lora_targets(Gpt&, const LoraConfig&);

/// Gives each of the lora_targets() an adapter that adds nothing yet, and freezes all of `base`, the parameters of the
/// model. Copies of the model that were made before have no adapters, and get the merged weights. An Error of
/// lora_targets(), or when base does not have their weights; nothing has changed then.
GptLora apply_lora(Gpt& model, const Params& base, const LoraConfig& = {});

/// Whether all of `name` fits a pattern of characters and *.
bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace tg
