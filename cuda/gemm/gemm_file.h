// Measured algorithms: JSON, one entry per version of cuBLASLt, GPU and product, of a file and of what was shipped with
// the build. For gemm.cpp.
#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

#include <unordered_map>

namespace tg::cuda {

class GemmFile {
 public:
  struct Entry {
    cublasLtMatmulAlgo_t algorithm;
    double microseconds;
    bool shipped = false;
  };
  // Reads the file if it is there, whose entries come before those of `shipped`. An Error(io) that names it when it is
  // damaged. Its entries of another version of the library or another GPU are kept for them. An empty path is no file.
  GemmFile(std::string path, std::string gpu, std::span<const std::string_view> shipped);
  const std::string& path() const { return path_; }
  const Entry* find(const GemmKey&) const;  // null: not measured
  void add(const GemmKey&, const Entry&);   // and writes the file, wholly or not at all
  size_t size() const { return entries_.size(); }
  size_t foreign() const { return foreign_.size(); }
  [[noreturn]] void damaged(std::string_view what) const;

 private:
  void read(std::string_view text, bool shipped);

  std::string path_, gpu_;
  std::unordered_map<GemmKey, Entry, GemmKeyHash> entries_;
  std::vector<std::string> foreign_;  // as they were read
};

}  // namespace tg::cuda
