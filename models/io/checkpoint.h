/// @file
/// Checkpoints of training runs: one safetensors file with all that a run needs to continue as if it had never stopped.
/// It has the weights (of the model or of adapters), moments, generators and data position (TrainerState), the
/// configuration, the tokenizer and the identity of the data. Writes are atomic, reads check everything. model_dir.h
/// has models for other programs.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/train/state.h>

#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Identifies the data of a run.
struct DataIdentity {
  std::vector<std::string> files;  ///< paths, or empty; not compared: files may move
  int64_t tokens = 0;
  uint64_t hash = 0;  ///< hash of all ids in order, and of validation()

  /// Reads and hashes all tokens.
  static DataIdentity of(const TokenData&, std::vector<std::string> files = {});
  /// Hashes tokens and targets of all examples.
  static DataIdentity of(const Examples&, std::vector<std::string> files = {});
  /// Whether both have the same tokens.
  bool same_tokens(const DataIdentity& other) const { return tokens == other.tokens && hash == other.hash; }
};

namespace detail {
/// The hash of a tokenizer in meta.json of shards.
std::string tokenizer_hash(const Tokenizer&);
/// An Error if the meta.json of a token file's folder names another tokenizer, missing shards or other counts.
void check_shards(std::span<const TokenData> files, const Tokenizer*);
}  // namespace detail

/// The base of a run that trains adapters.
struct Finetuning {
  /// Its folder or "". Not compared: it may move.
  std::string model;
  std::string weights;  ///< weights_hash() of the base (peft.h)
  LoraConfig lora;
  DType base = DType::f32;  ///< dtype of the frozen weights
  bool nf4 = false;         ///< Blocks::nf4
};

/// Contents of the file: state.tensors as tensors, the rest as JSON metadata.
struct Checkpoint {
  /// to_json() of a RunConfig or another struct with visit_fields() (models/config/config_json.h).
  std::string config;
  std::string tokenizer = "";  ///< to_json(), or "" for ids
  DataIdentity data = {};
  TrainerState state;
  std::optional<Finetuning> finetuning = std::nullopt;  ///< empty: trains the model
  std::string init = "";                                ///< folder of initial weights or adapter; "": random
  /// Kernels so far: others round differently. "": unknown.
  std::string kernels = "";
  std::string program = "";       ///< version and commit that wrote it; "": unknown
  std::string init_weights = "";  ///< weights_hash() of `init`
};

/// Writes `path` by write_file_atomically(): an Error leaves the former checkpoint unchanged. An Error of kind
/// non_finite names the step and the first weight or moment (by name, then position) that is infinite or NaN.
void save_checkpoint(const std::string& path, const Checkpoint&);
/// Reads and checks a checkpoint. An Error names file and reason: missing, truncated, another program or version, a
/// wrong field or checksum.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace tg
