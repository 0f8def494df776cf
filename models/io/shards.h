/// @file
/// Weights in a folder of Hugging Face: model.safetensors, or several files ("shards") and
/// model.safetensors.index.json, which maps tensors to files.
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
  /// Opens the files and reads their headers. An Error if there are none, a file is damaged or outside the folder, or
  /// index and files disagree.
  explicit Shards(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;  ///< of all tensors, sorted
  bool has(const std::string& name) const { return where_.contains(name); }
  /// The file of an existing tensor.
  const SafetensorsFile& file_of(const std::string& name) const { return files_[where_.at(name)]; }
  const SafetensorsInfo& info(const std::string& name) const { return file_of(name).info(name); }
  Tensor tensor(const std::string& name) const { return file_of(name).tensor(name); }

 private:
  void open_all(const std::string& index);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> where_;  // name -> index in files_
};

/// A tensor to write.
struct ShardTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::function<Tensor()> make;  ///< of that shape and dtype
};
/// Writes model.safetensors, or an index and shards of up to `max_shard` bytes of tensors, into an existing folder,
/// then removes other old weights (remove_other_weights()). The tensors of one file are in memory at once. Each file is
/// written atomically, the index last.
void write_shards(const std::string& folder, const std::vector<ShardTensor>&, int64_t max_shard);
/// Removes former weights after `shards` files were written: model.safetensors or the index, and all
/// model-00001-of-0000N.safetensors of another number.
void remove_other_weights(const std::string& folder, size_t shards);

}  // namespace tg
