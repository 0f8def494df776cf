/// @file
/// RunConfig: all that `tapegrad train` is told about a run, with the model and its tokenizer. It has named runs and
/// models, and reads settings by name from JSON text or words. The command line uses it, and programs that start named
/// runs.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/train/config.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The settings of a run. A vocab_size of 0 means that of the tokenizer.
struct RunConfig {
  GptConfig model;  ///< a vocab_size of 0 means that of the tokenizer
  TrainConfig train;
  /// "byte", "char": the characters of the text, or the path of a tokenizer.json or of its folder
  std::string tokenizer = "byte";
  RunConfig() { model.vocab_size = 0, train.dtype = DType::f32; }
};

/// The run "shakespeare-cpu" or "demo"; an Error lists the names.
RunConfig preset(std::string_view name);
/// The model "nano" (with the vocabulary of the tokenizer), "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl", or one
/// that bench/ measures: "gpt-small-10k", "gpt-medium-10k" (vocabulary 10 000) or "cs336-2.7b" (Stanford CS336,
/// assignment 2). An Error lists the names.
GptConfig arch(std::string_view name);
/// The names of runs or models, for help texts: "a, b".
/// @{
std::string preset_names();
std::string arch_names();
/// @}

/// A setting in help texts. `kind` is INT, NUMBER, BOOL or NAME, and `value` the default.
struct RunField {
  std::string name, kind, value, help;
};
/// All settings, in order: those of GptConfig, those of TrainConfig, and `tokenizer`.
std::vector<RunField> run_fields();

/// Whether a setting of this name is one of GptConfig, or of TrainConfig.
/// @{
bool is_model_setting(std::string_view name);
bool is_train_setting(std::string_view name);
/// @}

/// Puts a run together from settings by name; later ones win.
class Settings {
 public:
  /// Starts from a run, by default the standard one.
  explicit Settings(const RunConfig& base = {}) : run_(base) {}
  /// One setting from a word: "3", "1e-3", "true", "gelu". An Error if there is no such setting, or it takes no such
  /// word.
  void set(std::string_view name, std::string_view word);
  /// All settings of a JSON object, plain or grouped as in the config.json of a model: {"model": {...}, "train":
  /// {...}}. `source` is the name of the text in messages. An Error for a key that is unknown (it names the nearest),
  /// in the wrong group or comes twice, for a value of the wrong type, and for a tokenizer with characters outside a
  /// whole configuration, because a run takes the characters of its text.
  void read(std::string_view text, const std::string& source);
  /// The run. An Error names a value out of range, or a setting that has no effect beside another one, unless it came
  /// with all others of its group, as in the files of a model.
  RunConfig run() const;
  /// The run as far as it is known, without these checks.
  const RunConfig& unchecked() const { return run_; }

 private:
  RunConfig run_;
  std::vector<std::string> chosen_;  // must have an effect
};

/// A JSON object with every field.
std::string to_json(const TrainConfig&);
/// A JSON object with every field: {"model": {...}, "train": {...}, "tokenizer": "byte"}.
std::string to_json(const RunConfig&);
/// Reads the JSON object that to_json(const RunConfig&) writes. `source` is the name of the text in messages, such as a
/// path. An Error names a field that is missing, unknown, of the wrong type or out of range.
RunConfig run_config_from_json(std::string_view text, const std::string& source);

/// A setting with two values, as JSON.
struct Difference {
  std::string name, before, after;
};
/// The settings that differ between two runs, in order.
std::vector<Difference> differences(const RunConfig& before, const RunConfig& after);

}  // namespace tg
