/// @file
/// RunConfig: the settings of `tapegrad train`; named runs and models; settings by name from JSON or words.
#pragma once
#include <tapegrad/models/data/data_config.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/train/config.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The settings of a run.
struct RunConfig {
  GptConfig model;  ///< vocab_size 0 means that of the tokenizer
  TrainConfig train;
  DataConfig data;
  /// "byte", "char" (the characters of the text), or the path of a tokenizer.json or its folder.
  std::string tokenizer = "byte";
  RunConfig() { model.vocab_size = 0, train.dtype = DType::f32; }
};

/// The run "shakespeare-cpu", "demo", "gpt2-124m-llmc" or "gpt2-124m-track3" (gpt2_recipes.md); an Error lists the
/// names.
RunConfig run_preset(std::string_view name);
/// Model "nano" (with the tokenizer's vocabulary), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt-small-10k",
/// "gpt-medium-10k" (vocabulary 10 000), "cs336-2.7b" (Stanford CS336, assignment 2). An Error lists the names.
GptConfig model_preset(std::string_view name);

/// A setting in help texts. `kind` is INT, NUMBER, BOOL or NAME, `value` the default.
struct RunField {
  std::string name, kind, value, help;
};

/// Assembles a run from settings by name; later ones win.
class Settings {
 public:
  /// min_lr is a tenth of each lr that is set, until it is set itself. A recorded base keeps its min_lr, others a 0.
  explicit Settings(const RunConfig& base = {}, bool recorded = false)
      : run_(base), follows_(!recorded && base.train.min_lr > 0) {}
  /// Sets one setting from a word: "3", "1e-3", "true", "gelu". Throws if either is unknown.
  void set(std::string_view name, std::string_view word);
  /// Reads the settings of a JSON object, flat or grouped like a model's config.json: {"model": {...}, "train": {...}}.
  /// `source` names the text in messages. Throws for a key that is unknown (it names the nearest), in the wrong group
  /// or duplicate, and for a wrong type. A tokenizer with characters is an Error except in a whole configuration,
  /// because a run takes the characters of its text.
  void read(std::string_view text, const std::string& source);
  /// The run. Throws for a value out of range, or a setting that another one makes ineffective, unless its whole group
  /// was read, as from a model's files.
  RunConfig run() const;
  /// The run so far, without these checks.
  const RunConfig& unchecked() const { return run_; }

 private:
  void follow(std::string_view name);
  RunConfig run_;
  bool follows_;
  std::vector<std::string> chosen_;  // settings that must have an effect
};

/// A JSON object with every field.
std::string to_json(const TrainConfig&);
/// A JSON object with every field: {"model": {...}, "train": {...}, "data": {...}, "tokenizer": "byte"}.
std::string to_json(const RunConfig&);

/// A setting with two values, as JSON.
struct Difference {
  std::string name, before, after;
};
namespace detail {
/// A model_preset(), or model and steps of a run_preset(), for plans and benchmarks: without data and order.
RunConfig named_run(std::string_view name);
/// Names for help texts: "a, b".
std::string run_preset_names();
std::string model_preset_names();
/// Reads to_json(const RunConfig&)'s output. `source` names the text in messages. An Error names a field that is
/// missing, unknown, of the wrong type or out of range.
RunConfig run_config_from_json(std::string_view text, const std::string& source);
/// All settings, in order: GptConfig, TrainConfig, DataConfig, `tokenizer`.
std::vector<RunField> run_fields();
/// Whether the setting belongs to GptConfig; to TrainConfig or DataConfig; to DataConfig; to its part about examples.
/// @{
bool is_model_setting(std::string_view name);
bool is_train_setting(std::string_view name);
bool is_data_setting(std::string_view name);
bool is_example_setting(std::string_view name);
/// @}
/// DataConfig::weights as numbers. An Error unless commas separate them.
std::vector<double> mixture_weights(std::string_view);
std::vector<Difference> differences(const RunConfig& before, const RunConfig& after);
}  // namespace detail

}  // namespace tg
