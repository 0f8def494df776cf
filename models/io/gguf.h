/// @file
/// GGUF files, version 3: models for llama.cpp. They are written, not read.
/// Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/model/lora.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tg {

/// Types by their numbers in files. q8_0: an f16 scale, max |x| / 127, and 8-bit multiples of it for each 32 elements
/// of a row.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
namespace detail {
/// The type of a name such as "q8_0", or an Error.
GgufType gguf_type(std::string_view name);
}  // namespace detail

/// Options of save_gguf().
struct GgufOptions {
  /// Type of matrices. Norms, biases and positions are f32; q8_0 rows that 32 does not divide are f16. Unset: the type
  /// of the origin's matrices, else f32.
  std::optional<GgufType> type = {};
  const Tokenizer* tokenizer = nullptr;       ///< required: ByteTokenizer or BpeTokenizer
  const HuggingFaceSource* origin = nullptr;  ///< special tokens, chat template
  std::string chat_template = "";             ///< Jinja, replaces that of the origin
  std::vector<int64_t> eos_tokens = {};       ///< eos, eom, eot; empty: those of the origin
};
/// Writes a Gpt and its tokenizer, atomically. Parameters that the model lacks: zeros (biases), ones (norms). An Error
/// for features that llama.cpp lacks and non-finite weights.
void save_gguf(const std::string& path, const GptConfig&, const Params&, const GgufOptions&);
/// Writes adapters in f32 for llama.cpp's --lora over save_gguf()'s model. Errors as there.
void save_gguf_adapter(const std::string& path, const GptConfig&, const Lora&);

}  // namespace tg
