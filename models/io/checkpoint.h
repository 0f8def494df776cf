/// @file
/// The checkpoint of a training run: one safetensors file with all that the run needs to go on as if it had never
/// stopped: weights (of the model, or of adapters alone), moments, generators and the place in the data (TrainerState),
/// the configuration of model, training and tokenizer, and which data it was. Written wholly or not at all, checked in
/// full when it is read. Not the model that others use (model_dir.h). Users: `tapegrad train --resume`, training
/// programs.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/gpt/lora.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>

#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Which data a run reads.
struct DataIdentity {
  std::vector<std::string> files;  ///< where it was read from; may be empty. Not compared: files may move
  int64_t tokens = 0;
  uint64_t hash = 0;  ///< of all token ids in order

  static DataIdentity of(const TokenData&, std::vector<std::string> files = {});
  bool same_tokens(const DataIdentity& other) const { return tokens == other.tokens && hash == other.hash; }
};

/// What a run trains when it is not the model: adapters over one that was trained before.
struct Finetuning {
  std::string model;    ///< the folder of that one; may be empty. Not compared: folders may move
  std::string weights;  ///< its weights_hash() (adapter.h)
  LoraConfig lora;
};

/// The file's tensors are those of state.tensors, under their names; the rest is its metadata, as JSON.
struct Checkpoint {
  RunConfig run;          ///< with the model's vocab_size, not 0
  std::string tokenizer;  ///< its to_json(); "" when the data was token ids without one
  DataIdentity data;
  TrainerState state;
  std::optional<Finetuning> finetuning = std::nullopt;  ///< empty: the run trains the model
};

/// Writes `path` as write_file_atomically() does: on any Error the former checkpoint is as it was. One of kind
/// non_finite names the first weight or moment (by name, then by position) that is infinite or NaN, and the step.
void save_checkpoint(const std::string& path, const Checkpoint&);
/// An Error names the file and what is wrong: it is missing, cut short, of another program or version, has a field that
/// is missing, unknown or out of range, or its checksum says that some bit has changed.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace tg
