/// @file
/// The checkpoint of a training run: one safetensors file with all that the run needs to continue as if it had never
/// stopped. It has the weights (of the model, or of adapters alone), moments, generators and the place in the data
/// (TrainerState), the configuration of model, training and tokenizer, and the identity of the data. It is written
/// wholly or not at all, and checked in full when it is read. It is not the model for others (model_dir.h). `tapegrad
/// train --resume` and training programs use it.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/train/state.h>

#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Which data a run reads.
struct DataIdentity {
  std::vector<std::string> files;  ///< the paths, may be empty; not compared, as files may move
  int64_t tokens = 0;
  uint64_t hash = 0;  ///< of all token ids in order

  /// The identity of these tokens; reads all of them.
  static DataIdentity of(const TokenData&, std::vector<std::string> files = {});
  /// Whether both have the same tokens; files are not compared.
  bool same_tokens(const DataIdentity& other) const { return tokens == other.tokens && hash == other.hash; }
};

/// What a run trains if it is not the model: adapters over a model that was trained before.
struct Finetuning {
  std::string model;    ///< the folder of that model, may be empty; not compared, as folders may move
  std::string weights;  ///< its weights_hash() (adapter.h)
  LoraConfig lora;
  DType base = DType::f32;  ///< of the frozen weights
};

/// The content of the file. The tensors are those of state.tensors, with their names; the rest is metadata, as JSON.
struct Checkpoint {
  /// The configuration of model and training, a JSON object: to_json() of a RunConfig, or of a struct of one's own with
  /// visit_fields() (models/config/config_json.h).
  std::string config;
  std::string tokenizer = "";  ///< its to_json(), or "" if the data was token ids without one
  DataIdentity data = {};
  TrainerState state;
  std::optional<Finetuning> finetuning = std::nullopt;  ///< empty if the run trains the model
  std::string init = "";  ///< the folder of the model that the run began with; "" if its weights were drawn
  /// The kernels that computed the run so far, as other kernels give other bits; "" means that they are unknown.
  std::string kernels = "";
};

/// Writes `path` as write_file_atomically() does: on any Error the former checkpoint is unchanged. An Error of kind
/// non_finite names the first weight or moment (by name, then by position) that is infinite or NaN, and the step.
void save_checkpoint(const std::string& path, const Checkpoint&);
/// Reads and checks a checkpoint. An Error names the file and what is wrong: it is missing, cut short, of another
/// program or version, has a field that is missing, unknown or out of range, or its checksum shows a changed bit.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace tg
