/// @file
/// The weights in a folder that Hugging Face's libraries wrote: model.safetensors, or several files ("shards") with an
/// index, model.safetensors.index.json, that names the file of each tensor. It knows no model; huggingface.h does.
#pragma once
#include <tapegrad/core/io/safetensors.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tg {

/// The weights of a folder, open for reading.
class Shards {
 public:
  /// Opens the files and reads their headers. An Error if there are none, if a file is damaged or lies outside of the
  /// folder, and if index and files do not agree on each tensor.
  explicit Shards(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;  ///< of all tensors, sorted
  bool has(const std::string& name) const { return where_.contains(name); }
  /// The file with a tensor, which has().
  const SafetensorsFile& file_of(const std::string& name) const { return files_[where_.at(name)]; }
  const SafetensorsInfo& info(const std::string& name) const { return file_of(name).info(name); }
  Tensor tensor(const std::string& name) const { return file_of(name).tensor(name); }

 private:
  void open_all(const std::string& index);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> where_;  // name -> place in files_
};

/// A tensor that is to be written.
struct ShardTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::function<Tensor()> make;  ///< of that shape and dtype
};
/// Writes model.safetensors, or shards of up to `max_shard` bytes of tensors and their index, into a folder that
/// exists. Files of another form or number, from before, are removed at the end (remove_other_weights()). The tensors
/// of one file are in memory at once. Each file is written wholly or not at all, and the index last.
void write_shards(const std::string& folder, const std::vector<ShardTensor>&, int64_t max_shard);
/// Removes the weights that a folder had before it got `shards` files of them: model.safetensors beside several, and
/// the index and all files model-00001-of-0000N.safetensors that are not of that number.
void remove_other_weights(const std::string& folder, size_t shards);

}  // namespace tg
