/// @file
/// The folder of a trained model: model.safetensors with the parameters, and config.json with the model's
/// configuration, its tokenizer and how it was trained: all that generation needs. It is not a training state to resume
/// from. The command line uses it, and programs that load what it trained.
#pragma once
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/gpt.h>

#include <memory>
#include <string>

namespace tg {

/// A model from a folder.
struct LoadedModel {
  Params params;
  Gpt model;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null if the model was trained on token ids of an unknown tokenizer
};

/// Writes both files into `folder`, which exists; each wholly or not at all. `train_json` is stored as it is, for human
/// readers; "" leaves it out.
void save_model(const std::string& folder, const Gpt&, const Params&, const Tokenizer* tokenizer,
                const std::string& train_json = "");
/// Reads a model to a device. An Error names the file and what is wrong in it.
LoadedModel load_model(const std::string& folder, Device = {});
/// The JSON text of the configuration in folder/config.json, as it was written.
std::string model_config_text(const std::string& folder);

}  // namespace tg
