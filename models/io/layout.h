/// @file
/// Tensor names and layouts of a Gpt in other programs. One table per family drives reading and writing: the rows of
/// our tensor that form theirs, transposition, and row order.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Models with one set of names. Mistral uses llama's.
enum class Family { none, gpt2, llama, qwen2, qwen3 };
/// "gpt2", as in config.json.
std::string_view name_of(Family);

/// The family whose files can hold this configuration, or none.
Family family_of(const GptConfig&);
/// The fields that differ from the nearest family: "norm is layer_norm, not rms_norm". "" unless family_of() is none.
std::string family_mismatch(const GptConfig&);

/// Rows of our tensor that form one of theirs.
struct Piece {
  std::string theirs;
  int64_t rows = 0;
  /// Heads with rope pairs; 0: equal row order. Theirs stores the first elements of all pairs in the first half of a
  /// head and the second ones in the other half. Ours stores each pair adjacent.
  int64_t pair_heads = 0;
};
/// A tensor of ours.
struct Entry {
  std::string ours;
  std::vector<Piece> pieces;
  int64_t columns = 0;      ///< 0: one dimension
  bool transposed = false;  ///< theirs is (columns, rows)

  Shape shape() const;              ///< of ours
  Shape shape(const Piece&) const;  ///< of theirs
};
/// The tensors of a Gpt, in order, with transformers' names. An Error for Family::none.
std::vector<Entry> huggingface_layout(Family, const GptConfig&);

/// Our rows from one tensor of theirs.
Tensor rows_from(const Entry&, const Piece&, const Tensor& theirs);
/// One tensor of theirs from our rows.
Tensor rows_to(const Entry&, const Piece&, const Tensor& ours);

}  // namespace tg
