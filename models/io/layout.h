/// @file
/// How other programs name and arrange the tensors of a Gpt. One table for each family of models drives all reading and
/// writing of their files: which consecutive rows of a tensor of ours are a tensor of theirs, which are transposed, and
/// whose rows are in another order. Model folders of Hugging Face (huggingface.h) use it.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Models with one set of names. Mistral's are those of llama.
enum class Family { none, gpt2, llama, qwen2, qwen3 };
/// "gpt2", as config.json has it.
std::string_view name_of(Family);

/// The family whose files can have a model of this configuration; none if there is none.
Family family_of(const GptConfig&);
/// The fields that keep a configuration from being one of the nearest family, and their values there:
/// "norm is layer_norm, not rms_norm"; "" if family_of() is not none.
std::string family_mismatch(const GptConfig&);

/// Consecutive rows of a tensor of ours that are a tensor of theirs.
struct Piece {
  std::string theirs;
  int64_t rows = 0;
  /// Heads whose rows rope turns in pairs; 0: rows are in the same order. Theirs has the first element of each pair in
  /// the first half of a head and the second one in the other half; ours has both side by side.
  int64_t pair_heads = 0;
};
/// A tensor of ours.
struct Entry {
  std::string ours;
  std::vector<Piece> pieces;
  int64_t columns = 0;      ///< 0: it has one dimension
  bool transposed = false;  ///< theirs is (columns, rows)

  Shape shape() const;              ///< of ours
  Shape shape(const Piece&) const;  ///< of theirs
};
/// The tensors of such a Gpt, in its order, by their names in transformers. An Error if the family is none.
std::vector<Entry> huggingface_layout(Family, const GptConfig&);

/// Our rows of the tensor of a piece.
Tensor rows_from(const Entry&, const Piece&, const Tensor& theirs);
/// The tensor of a piece, from our rows.
Tensor rows_to(const Entry&, const Piece&, const Tensor& ours);

}  // namespace tg
