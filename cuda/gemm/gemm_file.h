// The file of measured algorithms: JSON, one entry per version of cuBLASLt, GPU and product. For gemm.cpp.
#pragma once
#include <tapegrad/cuda/gemm/gemm_plan.h>

#include <unordered_map>

namespace tg::cuda {

class GemmFile {
 public:
  struct Entry {
    cublasLtMatmulAlgo_t algorithm;
    double microseconds;
  };
  // Reads the file if it is there. An Error(io) that names it when it is damaged. Entries of another version of the
  // library or another GPU are kept for them.
  GemmFile(std::string path, std::string gpu);
  const std::string& path() const { return path_; }
  const Entry* find(const GemmKey&) const;  // null: not measured
  void add(const GemmKey&, const Entry&);   // and writes the file, wholly or not at all
  size_t foreign() const { return foreign_.size(); }
  [[noreturn]] void damaged(std::string_view what) const;

 private:
  std::string path_, gpu_;
  std::unordered_map<GemmKey, Entry, GemmKeyHash> entries_;
  std::vector<std::string> foreign_;  // as they were read
};

}  // namespace tg::cuda
