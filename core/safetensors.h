/// @file
/// The safetensors file format: named tensors and a map of strings in one file (8 bytes of header length,
/// little-endian; a JSON header; the bytes of the tensors without gaps). The format only: what the names mean is up to
/// the caller. Users: checkpoints, test data, conversion of weights.
#pragma once
#include <tapegrad/core/file.h>
#include <tapegrad/core/tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace tg {

using StateDict = std::map<std::string, Tensor>;

struct SafetensorsInfo {
  DType dtype = DType::f32;
  Shape shape;
  size_t offset = 0, bytes = 0;  ///< where its elements are in the file: row-major, little-endian
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo> tensors;
  std::map<std::string, std::string> metadata;
};
/// The header of a whole file in memory, checked against the format and the size of the file: damaged or hostile input
/// ends in an Error of kind io naming the file as `path`, the tensor and the values. Elements are not read.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path);

/// A file open for reading. The constructor checks the header as parse_safetensors() does; no element is read yet.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::vector<std::string> names() const;  ///< sorted
  bool has(const std::string& name) const { return header_.tensors.contains(name); }
  const SafetensorsInfo& info(const std::string& name) const;  ///< an Error when there is no such tensor
  Tensor tensor(const std::string& name, Device = {}) const;   ///< a copy
  StateDict tensors(Device = {}) const;                        ///< copies of all
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Writes all tensors (any layout and device; lazy ones are evaluated), atomically as file.h says. The same input gives
/// the same bytes: keys are sorted, wide dtypes come first, so that each tensor is aligned to its own element size. An
/// Error for an empty Tensor, the name "__metadata__", and text that is not UTF-8.
void write_safetensors(const std::string& path, const StateDict&,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tg
