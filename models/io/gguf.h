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

/// Types of tensors, by their numbers in a file. q8_0: an f16 scale, max |x| / 127, and 8-bit multiples of it for each
/// 32 elements of a row.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
/// The type of a name such as "q8_0", or an Error.
GgufType gguf_type(std::string_view name);

/// Options of save_gguf().
struct GgufOptions {
  /// The type of matrices; norms, biases and positions are f32. With q8_0, rows that are no multiple of 32 are f16.
  /// Unset: the type of all matrices in the origin's files, else f32.
  std::optional<GgufType> type = {};
  const Tokenizer* tokenizer = nullptr;       ///< needed: a ByteTokenizer or BpeTokenizer
  const HuggingFaceSource* origin = nullptr;  ///< has special tokens and the chat template
  std::string chat_template = "";             ///< Jinja, in place of the origin's
  std::vector<int64_t> eos_tokens = {};       ///< eos, eom, eot; empty: the origin's
};
/// Writes a Gpt and its tokenizer, atomically. Parameters of the family that the model lacks are zeros (biases) and
/// ones (norms). An Error for what llama.cpp lacks, and for a weight that is not finite in the file.
void save_gguf(const std::string& path, const GptConfig&, const Params&, const GgufOptions&);
/// Writes adapters of a Gpt alone, in f32, for llama.cpp's --lora over the model of save_gguf(). An Error as there.
void save_gguf_adapter(const std::string& path, const GptConfig&, const Lora&);

}  // namespace tg
