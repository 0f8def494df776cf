/// @file
/// The folder of a trained model: model.safetensors with the parameters, and config.json with the model's
/// configuration, its tokenizer and how it was trained: all that generation needs. Not a training state to resume from.
/// Users: the command line, programs that load what it trained.
#pragma once
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/gpt.h>

#include <memory>
#include <string>

namespace tg {

struct LoadedModel {
  Params params;
  Gpt model;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null: trained on token ids of a tokenizer that was not given
};

/// Writes both files into `folder`, which exists; each wholly or not at all. `train_json` is kept as it is, for the
/// reader's sake; "" leaves it out.
void save_model(const std::string& folder, const Gpt&, const Params&, const Tokenizer* tokenizer,
                const std::string& train_json = "");
/// An Error names the file and what is wrong in it.
LoadedModel load_model(const std::string& folder, Device = {});
/// The configuration in folder/config.json as it was written: JSON text.
std::string model_config_text(const std::string& folder);

}  // namespace tg
