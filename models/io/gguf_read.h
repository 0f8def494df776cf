/// @file
/// Models in GGUF files of llama.cpp: configuration and weights of a Gpt. load_model() reads such a file wherever it
/// reads a folder; text_in() has its tokenizer.
#pragma once
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/ops/quantized/block_linear.h>

#include <map>
#include <optional>
#include <string>

namespace tg::detail {

/// The configuration of the model in a file. An Error names the key or the architecture that a Gpt does not compute.
GptConfig gguf_config(const GgufFile&);

/// The weights of a file by our names. Rows of queries and keys are in our order.
class GgufWeights {
 public:
  /// Reads the header. An Error names the first tensor that is missing, unknown or of another shape.
  GgufWeights(const std::string& path, const GptConfig&);

  std::map<std::string, Shape> shapes() const;
  /// The values of a parameter, rounded to f64, f32 or bf16 once.
  Tensor read(const std::string& ours, DType) const;
  /// The blocks of a parameter as they are in the file, with a part for each tensor there; nothing unless all of them
  /// are in blocks.
  std::optional<BlockWeight> blocks(const std::string& ours) const;

 private:
  Tensor piece(const TensorSlice&) const;
  GgufFile file_;
  std::map<std::string, TensorMapping> entries_;
};

}  // namespace tg::detail
