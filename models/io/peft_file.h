// The files of a PEFT adapter, and the modules that its configuration selects. Internal.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/tensor.h>
#include <tapegrad/models/config/fields.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::detail {

inline constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";
inline constexpr std::string_view kPeftPrefix = "base_model.model.", kPeftA = ".lora_A.weight",
                                  kPeftB = ".lora_B.weight";

// Patterns of module names, with their values.
template <class T> using Patterns = std::vector<std::pair<std::string, T>>;

void read_field(const FieldName&, const Json&, std::vector<std::string>&);
template <class T> void read_field(const FieldName& f, const Json& x, Patterns<T>& to) {
  expect_field(x.is_object(), f, x, "an object from patterns to numbers");
  to.clear();
  for (const auto& [key, value] : x.items()) {
    T number{};
    tg::read_field({f.op, key}, value, number);
    to.push_back({key, number});
  }
}

// Whether target_modules, exclude_modules, layers_to_transform and layers_pattern select a module, as PEFT applies
// them. Nothing without target_modules, or for a regular expression in a syntax that TextPattern lacks: the tensors of
// the file name the modules as well.
std::optional<bool> is_selected(const Json& config, const std::string& module);

struct PeftFile {
  std::string config_path, path;
  Json config;
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false;
  Patterns<int64_t> ranks;
  Patterns<double> alphas;
  std::string base;  // weights_hash() of the base, or ""
  bool base_is_bf16 = false;
  std::map<std::string, std::pair<Tensor, Tensor>> modules;  // A (r, in) and B (out, r)
  std::map<std::string, Tensor> copies;                      // weights of the base, which PEFT saves with adapted heads

  int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
};
// The configuration alone. An Error if the folder has no adapter.
Json read_peft_config(const std::string& folder);
std::string peft_weights_path(const std::string& folder);
// An Error for damage, or a key that would change results and is not supported.
PeftFile read_peft(const std::string& folder);

}  // namespace tg::detail
