/// @file
/// LoRA on a model: patterns choose the Linear layers that get a delta (models/nn/lora.h). Their parameters are
/// separate, so a Trainer or an optimiser can train them alone. models/io/peft.h has the files.
#pragma once
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/lora.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tg {

namespace detail {
struct TensorMapping;  // io/layout.h
}

/// Layers and size of the adapters.
struct LoraConfig {
  /// Patterns of module names (config/suggest.h). Each block h.i of a Gpt has attn.qkv (one weight), attn.proj, mlp.fc
  /// and mlp.proj; lm_head is a module unless tied. Example: `*.mlp.*`. Parts of a layer (Gpt::linears()) are modules
  /// too: `h.*.attn.q`. A pattern that matches the layer takes it whole.
  std::vector<std::string> targets = {"h.*.attn.qkv"};
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;   ///< uses ForwardOptions::rng
  uint64_t seed = 0;    ///< seed of A matrices, with the module's name
  bool rslora = false;  ///< scale: alpha / sqrt(rank), not alpha / rank
  /// Pairs of a pattern of module names and its rank or alpha. The first match wins; other modules have those above.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};

  nn::LoraOptions options(const std::string& module) const;  ///< options of one module
  bool operator==(const LoraConfig&) const = default;
};

/// Adapters of a model. Copies share them.
class Lora {
 public:
  /// An adapted layer, or a part of one.
  struct Module {
    std::string name;
    std::string linear;  ///< whole layer's name
    nn::LoraLinear layer;
  };

  const LoraConfig& config() const { return config_; }
  const std::vector<Module>& modules() const { return modules_; }  ///< model order
  /// Tensors of the base that train whole (NamedLinear::whole). params() has their copies.
  const StateDict& whole() const { return whole_; }
  /// `<module>.lora_a` (in, r) and `<module>.lora_b` (r, out), and whole(), in f64 if the model is, otherwise f32.
  const Params& params() const { return params_; }
  DType base_dtype() const { return base_dtype_; }

  /// Adds all deltas to their weights (nn::LoraLinear::merge()), and sets whole(). All or nothing.
  void merge();
  /// Restores all weights, bit for bit. All or nothing.
  void unmerge();
  bool merged() const;
  /// Freezes a copy of the deltas for passes without adapters (DpoModel). An Error if called twice.
  void keep_reference();

 private:
  friend Lora apply_lora(const Linears&, const Params&, const LoraConfig&);
  friend Lora load_adapter(const std::string&, const Linears&, const Params&, const std::vector<detail::TensorMapping>&,
                           const Params*);  // peft.h
  Lora(LoraConfig c, Params p, DType base) : config_(std::move(c)), params_(std::move(p)), base_dtype_(base) {}
  std::vector<nn::LoraLinear> layers() const;  // one per layer
  LoraConfig config_;
  Params params_;
  DType base_dtype_;
  std::vector<Module> modules_;
  StateDict whole_;
  std::shared_ptr<StateDict> unmerged_ = std::make_shared<StateDict>();  // originals of whole_ while merged
};

namespace detail {
/// Layers or parts that match a target, in order (Linears::matching()). An Error if a pattern matches none (it lists
/// the layers), a layer and its part match, LoraOptions::validate() refuses one, or one has an adapter.
std::vector<NamedLinear> lora_targets(const Linears& model, const LoraConfig&);
}  // namespace detail

/// Gives lora_targets() zero adapters, copies whole(), and freezes `base`, the model's parameters. Earlier copies of
/// the model lack adapters but see merged weights; handles (Model) are no copies. An Error, without changes, from
/// lora_targets() or if `base` lacks a target's weight.
Lora apply_lora(const Linears& model, const Params& base, const LoraConfig& = {});

}  // namespace tg
