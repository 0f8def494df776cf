// Files of a PEFT adapter, and the modules it selects.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/model/lora.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tg::detail {

inline constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";
inline constexpr std::string_view kPeftPrefix = "base_model.model.", kPeftA = ".lora_A.weight",
                                  kPeftB = ".lora_B.weight";

// Whether target_modules, exclude_modules, layers_to_transform and layers_pattern select a module in PEFT. Nothing
// without target_modules or for syntax that Regex lacks: the file's tensors name modules too.
std::optional<bool> is_selected(const Json& config, const std::string& module);

struct PeftFile {
  std::string config_path, path;
  Json config;
  LoraConfig lora = {.targets = {}, .rank = 0, .alpha = 0};
  std::string base;  // the base's weights_hash() or ""
  bool base_is_bf16 = false;
  std::map<std::string, std::pair<Tensor, Tensor>> modules;  // A (r, in) and B (out, r)
  std::map<std::string, Tensor> copies;                      // base weights that PEFT saves with adapted heads
  std::map<std::string, int64_t> ranks;                      // module ranks
  std::map<std::string, double> alphas;
  std::vector<std::string> to_save;     // modules_to_save
  std::map<std::string, Tensor> whole;  // modules_to_save's tensors
};
// An Error without an adapter.
Json read_peft_config(const std::string& folder);
std::string peft_weights_path(const std::string& folder);
// An Error for damage, or an unsupported key that changes results.
PeftFile read_peft(const std::string& folder);

}  // namespace tg::detail
