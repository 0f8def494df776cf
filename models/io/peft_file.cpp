#include <tapegrad/core/check.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/models/io/peft_file.h>
#include <tapegrad/models/tokenizers/regex.h>

#include <algorithm>
#include <cctype>
#include <ranges>
#include <span>

namespace tg::detail {
namespace {

constexpr std::string_view kMerge =
    "Merge the adapter in Python by merge_and_unload().save_pretrained(), copy the tokenizer there, and pass that "
    "folder as the model";
// Keys that this program applies, and keys without an effect on a trained adapter.
constexpr std::string_view kKnown[] = {
    "task_type",         "auto_mapping",        "peft_version",   "base_model_name_or_path",
    "revision",          "inference_mode",      "fan_in_fan_out", "megatron_core",
    "qalora_group_size", "eva_config",          "lora_alpha",     "lora_dropout",
    "use_rslora",        "rank_pattern",        "alpha_pattern",  "target_modules",
    "exclude_modules",   "layers_to_transform", "layers_pattern", "r",
    "modules_to_save"};
// Initialisations of only the first A and B; others change base weights.
constexpr std::string_view kStarts[] = {"gaussian", "eva", "orthogonal"};

bool is_in(std::span<const std::string_view> all, std::string_view name) {
  return std::ranges::find(all, name) != all.end();
}
void check_supported(const Json& config) {
  for (const auto& [key, x] : config.items()) {
    if (key == "peft_type" || is_in(kKnown, key)) continue;
    std::string rule;
    if (key == "bias") {
      if (x != Json("none")) rule = "Adapters trained with \"none\" are read";
    } else if (key == "init_lora_weights") {
      if (!x.is_boolean() && !x.is_null() && !(x.is_string() && is_in(kStarts, x.get<std::string>())))
        rule = fmt::format("Adapters that began with true, false, {} are read", listed(kStarts));
    } else if (!x.is_blank() && x != Json(false)) {
      rule = "Adapters trained without it are read";
    }
    TG_CHECK(rule.empty(), value, "[adapter] '{}' is {}, which changes the results and is not supported. {}. {}.", key,
             text_of(x), rule, kMerge);
  }
}

void read_tensors(PeftFile& f) {
  const SafetensorsFile file(f.path);
  for (const std::string& name : file.names()) {
    const SafetensorsInfo& t = file.info(name);
    constexpr std::string_view kBase = ".base_layer.weight";
    if (name.starts_with(kPeftPrefix) && name.ends_with(kBase)) {
      const std::string module = name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - kBase.size());
      f.copies[module + ".weight"] = file.tensor(name);
      continue;
    }
    const bool is_a = name.ends_with(kPeftA), is_whole = !f.to_save.empty() && !is_a && !name.ends_with(kPeftB);
    TG_CHECK(name.starts_with(kPeftPrefix) &&
                 (is_whole || ((is_a || name.ends_with(kPeftB)) && name.size() > kPeftPrefix.size() + kPeftA.size())),
             value,
             "[adapter] '{}' {} in {} is not the A or B of a Linear layer. Names must be \"{}<module>{}\" or "
             "\"...{}\". Merge the adapter in Python, and pass the merged folder as the model.",
             name, t.shape, f.path, kPeftPrefix, kPeftA, kPeftB);
    TG_CHECK(is_float(t.dtype), dtype, "[adapter] '{}' is {} in {}. It must be of a floating dtype.", name, t.dtype,
             f.path);
    if (is_whole) {
      f.whole[name.substr(kPeftPrefix.size())] = file.tensor(name);
      continue;
    }
    auto& pair = f.modules[name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - kPeftA.size())];
    (is_a ? pair.first : pair.second) = file.tensor(name);
  }
  TG_CHECK(!f.modules.empty(), value, "[adapter] {} has no tensors. Use another copy of the file.", f.path);
  for (const auto& [name, ab] : f.modules)
    TG_CHECK(ab.first && ab.second, value,
             "[adapter] {} has no '{}{}{}', the other half of '{}'. Use another copy of the file.", f.path, kPeftPrefix,
             name, ab.first ? kPeftB : kPeftA, name);
  const auto& metadata = file.metadata();
  if (const auto base = metadata.find("tapegrad.base"); base != metadata.end()) f.base = base->second;
  if (const auto dtype = metadata.find("tapegrad.base_dtype"); dtype != metadata.end()) {
    TG_CHECK(dtype->second == name_of(DType::bf16), io,
             "[adapter] {} has a base_dtype of '{}', and this program reads 'bf16'. Use the program that wrote it.",
             f.path, dtype->second);
    f.base_is_bf16 = true;
  }
}

// The first matching key's value, after any outer names.
template <class T>
std::map<std::string, T> values_of(const char* field, const Patterns<T>& keys, const auto& modules, T otherwise) {
  constexpr size_t kMost = 4096;
  TG_CHECK(keys.size() <= kMost, value, "[adapter] '{}' has {} keys, and may have {}. {}.", field, keys.size(), kMost,
           kMerge);
  std::map<std::string, T> found;
  for (const auto& [key, x] : keys) {
    try {
      const Regex regex(key.starts_with('^') ? key : fmt::format("(?:.*\\.)?(?:{})", key), Regex::Use::whole);
      for (const auto& [module, ab] : modules)
        if (regex.matches_whole(module)) found.emplace(module, x);
    } catch (const Error& e) {
      fail(e.kind(), fmt::format("[adapter] the key '{}' of '{}' is no regular expression that this program reads: {}",
                                 key, field, e.what()));
    }
  }
  for (const auto& [module, ab] : modules) found.emplace(module, otherwise);
  return found;
}

// A list has the module or an end of its name, or a regular expression matches.
std::optional<bool> names(const Json& config, const char* key, const std::string& module) {
  const Json* x = find_value(config, key);
  if (!x) return false;
  if (x->is_string()) {
    try {
      return Regex(x->get<std::string>(), Regex::Use::whole).matches_whole(module);
    } catch (const Error&) {
      return {};
    }
  }
  std::vector<std::string> list;
  read_field({"adapter", key}, *x, list);
  return std::ranges::any_of(list, [&](const std::string& n) { return module == n || module.ends_with("." + n); });
}
// Layer number N: of the first "<name>.N." after an outer name or a name in `in`; -1: none.
int64_t layer_of(const std::string& module, const std::vector<std::string>& in) {
  std::vector<std::string> words;
  for (const auto word : module | std::views::split('.')) words.emplace_back(word.begin(), word.end());
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const std::string& n = words[i];
    const bool number = !n.empty() && n.size() < 10 && n.find_first_not_of("0123456789") == std::string::npos;
    if (number && (in.empty() ? i > 1 : std::ranges::find(in, words[i - 1]) != in.end())) return std::stol(n);
  }
  return -1;
}

}  // namespace

std::optional<bool> is_selected(const Json& config, const std::string& module) {
  const std::optional<bool> excluded = names(config, "exclude_modules", module);
  const Json* targets = find_value(config, "target_modules");
  if (!excluded || !targets) return {};
  if (*excluded) return false;
  std::string word = targets->text();
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  if (word == "all-linear") return module != "lm_head";
  const std::optional<bool> named = names(config, "target_modules", module);
  const Json* layers = find_value(config, "layers_to_transform");
  if (!named || !*named || !layers || targets->is_string()) return named;
  for (const Json& name : *targets)  // whole names are not filtered
    if (name == Json(module)) return true;
  std::vector<std::string> in;
  if (const Json* x = find_value(config, "layers_pattern"))
    x->is_string() ? in.assign(x->text().empty() ? 0 : 1, x->text())
                   : read_field({"adapter", "layers_pattern"}, *x, in);
  const Json list = layers->is_number() ? Json::array({*layers}) : *layers;
  expect_field(list.is_array() && std::ranges::all_of(list, [](const Json& n) { return n.is_number_integer(); }),
               {"adapter", "layers_to_transform"}, *layers, "an integer or a list of integers");
  const Json layer = layer_of(module, in);
  return list.empty() || std::ranges::find(list, layer) != list.end();
}

Json read_peft_config(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kPeftConfig);
  const bool there = path_exists(folder), folder_there = there && is_folder(folder);
  TG_CHECK(folder_there && path_exists(path), io,
           "[adapter] {} {}. An adapter is a folder with {} and {}, as `tapegrad finetune --out` and PEFT write it. "
           "Name that folder.",
           folder,
           !there         ? "does not exist"
           : folder_there ? fmt::format("is a folder without {}", kPeftConfig)
                          : "is a file",
           kPeftConfig, kPeftWeights);
  const MappedFile file(path);
  constexpr size_t kMost = 1 << 20;  // PEFT writes 50 kB for 900 modules
  TG_CHECK(file.text().size() <= kMost, value, "[adapter] {} has {} bytes, and may have {}. {}.", path,
           file.text().size(), kMost, kMerge);
  Json config = parse_json(file.text(), "adapter", path);
  TG_CHECK(config.is_object() && config.contains("peft_type"), value,
           "[adapter] {} has no \"peft_type\", as PEFT writes it. Is it the file of another program?", path);
  const Json& type = config.at("peft_type");
  TG_CHECK(type == Json("LORA"), value, "[adapter] {} has the 'peft_type' {}, and \"LORA\" alone is read. {}.", path,
           text_of(type), kMerge);
  return config;
}
std::string peft_weights_path(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kPeftWeights);
  TG_CHECK(path_exists(path), io,
           "[adapter] {} has no {}{}. Complete the folder, or save the adapter again in Python by save_pretrained().",
           folder, kPeftWeights,
           path_exists(folder + "/adapter_model.bin") ? ", but adapter_model.bin, a pickle of Python" : "");
  return path;
}
PeftFile read_peft(const std::string& folder) {
  PeftFile f;
  f.config = read_peft_config(folder);
  f.config_path = fmt::format("{}/{}", folder, kPeftConfig);
  in_file(f.config_path, [&] {
    check_supported(f.config);
    const auto field = [&](const char* key, auto& to) {
      if (const Json* x = find_value(f.config, key)) read_field({"adapter", key}, *x, to);
    };
    for (const char* key : {"r", "lora_alpha"})
      TG_CHECK(f.config.contains(key), value, "[adapter] there is no '{}'. Every adapter has one. Restore the file.",
               key);
    field("r", f.lora.rank), field("lora_alpha", f.lora.alpha), field("lora_dropout", f.lora.dropout);
    field("use_rslora", f.lora.rslora), field("rank_pattern", f.lora.rank_pattern);
    field("alpha_pattern", f.lora.alpha_pattern), field("modules_to_save", f.to_save);
  });
  f.path = peft_weights_path(folder);
  read_tensors(f);
  in_file(f.config_path, [&] {
    f.ranks = values_of("rank_pattern", f.lora.rank_pattern, f.modules, f.lora.rank);
    f.alphas = values_of("alpha_pattern", f.lora.alpha_pattern, f.modules, f.lora.alpha);
  });
  return f;
}

}  // namespace tg::detail
