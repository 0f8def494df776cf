// Measured algorithms by cuBLASLt version, GPU and GEMM.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/cuda/gemm/gemm_plan.h>

#include <unordered_map>

namespace tg::cuda {

// A checksum, since damaged bytes may crash cuBLASLt.
Json with_checksum(Json entry);
class GemmFile {
 public:
  struct Entry {
    cublasLtMatmulAlgo_t algorithm;
    double microseconds;
    bool shipped = false;
  };
  // The file's entries precede `shipped`. An Error(io) names a damaged file. Entries of other cuBLASLt versions or GPUs
  // are preserved. Empty path: no file.
  GemmFile(std::string path, std::string gpu, std::span<const std::string_view> shipped);
  const std::string& path() const { return path_; }
  const Entry* find(const GemmKey&) const;  // null: not measured
  void add(const GemmKey&, const Entry&);   // writes the file atomically
  size_t size() const { return entries_.size(); }
  size_t foreign() const { return foreign_.size(); }
  [[noreturn]] void damaged(std::string_view what) const;

 private:
  void read(std::string_view text, bool shipped);

  std::string path_, gpu_;
  std::unordered_map<GemmKey, Entry, GemmKeyHash> entries_;
  std::vector<std::string> foreign_;  // verbatim
};

}  // namespace tg::cuda
