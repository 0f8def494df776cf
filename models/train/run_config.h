/// @file
/// RunConfig: all that `tapegrad train` is told about a run, the model and its tokenizer included; named runs and
/// models, and settings by name out of JSON text or words. Users: the command line, and programs that start named runs.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/train/config.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

struct RunConfig {
  GptConfig model;  ///< its vocab_size is 0 here for: that of the tokenizer
  TrainConfig train;
  std::string tokenizer = "byte";  ///< or "char": the characters of the text
  RunConfig() { model.vocab_size = 0; }
};

/// "shakespeare-cpu" and "demo"; an Error lists the names.
RunConfig preset(std::string_view name);
/// "nano" (vocab_size 0: that of the tokenizer), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", and the models
/// that bench/ measures: "gpt-small-10k" and "gpt-medium-10k" (vocabulary 10 000), and "cs336-2.7b" (Stanford CS336,
/// assignment 2). An Error lists the names.
GptConfig arch(std::string_view name);
/// Both, for help texts: "a, b".
std::string preset_names();
std::string arch_names();

/// The settings that there are, in order: those of GptConfig, of TrainConfig, and `tokenizer`.
struct RunField {
  std::string name, kind, value, help;  ///< kind: INT, NUMBER, BOOL or NAME; value: the default
};
std::vector<RunField> run_fields();

struct Setting {
  std::string name, json;  ///< json: its value
  bool stored = false;     ///< comes with all others of its group, as in the files of a model: it may have no effect
};
/// One setting out of a word: "3", "1e-3", "true", "gelu". An Error when the field takes no such word.
Setting setting_from_word(std::string_view name, std::string_view word);
/// All settings of a JSON object, plain or grouped as the config.json of a model is: {"model": {...}, "train": {...}}.
/// `source` is what messages call the text. An Error for a key that is unknown (it names the nearest), in the wrong
/// group or comes twice, and for a tokenizer with characters outside a stored configuration, as runs take those of
/// their text.
std::vector<Setting> settings_from_json(std::string_view text, const std::string& source);
/// The run with these settings, later ones winning. An Error names a value of the wrong type or out of range, or a
/// setting that has no effect beside another one, unless it is stored.
RunConfig with_settings(const RunConfig&, std::span<const Setting>);

std::string to_json(const TrainConfig&);  ///< one object with every field
std::string to_json(const RunConfig&);    ///< {"model": {...}, "train": {...}, "tokenizer": "byte"}
/// The inverse of the latter. `source` is what messages call the text. An Error for a field that is missing, unknown,
/// of the wrong type or out of range.
RunConfig run_config_from_json(std::string_view text, const std::string& source);

struct Difference {
  std::string name, before, after;  ///< values as JSON
};
std::vector<Difference> differences(const RunConfig& before,
                                    const RunConfig& after);  ///< settings that differ, in order

}  // namespace tg
