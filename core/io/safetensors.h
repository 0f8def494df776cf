/// @file
/// The safetensors file format: named tensors and a map of strings in one file (8 bytes of header length,
/// little-endian; a JSON header; the bytes of the tensors without gaps). Names have no meaning here. Specification:
/// https://github.com/huggingface/safetensors.
#pragma once
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace tg {

/// Tensors by name.
using StateDict = std::map<std::string, Tensor>;

/// A tensor in a file. Elements are row-major, little-endian.
struct SafetensorsInfo {
  DType dtype = DType::f32;
  Shape shape;
  size_t offset = 0, bytes = 0;
};

/// Header of a file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo> tensors;
  std::map<std::string, std::string> metadata;
};
namespace detail {
/// The checked header of a file in memory. Damaged or hostile input is an Error of kind io with `path`, tensor and
/// values. Reads no elements.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path);
}  // namespace detail

/// An open file. If it becomes shorter, reading throws an Error (InputFile).
class SafetensorsFile {
 public:
  /// Checks the header like parse_safetensors(). Reads no elements.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// The names of the tensors, sorted.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  /// Shape, dtype and position of a tensor; an Error if missing.
  const SafetensorsInfo& info(const std::string& name) const;
  /// A copy of one tensor on the device; an Error if missing.
  Tensor tensor(const std::string& name, Device = {}) const;
  /// Copies of all tensors on the device.
  StateDict tensors(Device = {}) const;
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

/// Writes tensors of any layout and device, evaluates lazy ones. Atomic (write_file_atomically()). Equal input gives
/// equal bytes: sorted keys. Tensors of wide dtypes come first, so each is aligned to its element size. An Error for an
/// empty Tensor, the name "__metadata__", and text that is not UTF-8.
void write_safetensors(const std::string& path, const StateDict&,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tg
