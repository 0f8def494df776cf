/// @file
/// Tensor names and layouts of a Gpt in other programs. One table per family drives reading and writing: the rows of
/// our tensor that form theirs, transposition, and row order.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Models with one set of names. Mistral uses llama's.
enum class Family { none, gpt2, llama, qwen2, qwen3 };
/// Names of families, as in config.json.
template <> inline constexpr EnumNames<5> kEnumNames<Family>{"family", {"none", "gpt2", "llama", "qwen2", "qwen3"}};

/// The family whose files can hold this configuration, or none.
Family family_of(const GptConfig&);
/// The fields that differ from the nearest family: "norm is layer_norm, not rms_norm". "" unless family_of() is none.
std::string family_mismatch(const GptConfig&);

namespace detail {

/// Rows of our tensor that form one of theirs.
struct TensorSlice {
  std::string theirs;
  int64_t rows = 0;
  /// Heads with rope pairs; 0: equal row order. Theirs stores the first elements of all pairs in the first half of a
  /// head and the second ones in the other half. Ours stores each pair adjacent.
  int64_t pair_heads = 0;
};
/// A tensor of ours.
struct TensorMapping {
  std::string ours;
  std::vector<TensorSlice> pieces;
  int64_t columns = 0;      ///< 0: one dimension
  bool transposed = false;  ///< theirs is (columns, rows)
  /// All elements of theirs, 0 or 1, if the Gpt lacks the tensor.
  std::optional<float> filling = {};

  Shape shape() const;                    ///< of ours
  Shape shape(const TensorSlice&) const;  ///< of theirs
};
/// Programs with names of tensors.
enum class NamingScheme { transformers, llama_cpp };
/// The tensors of a Gpt, in order. An Error for Family::none.
std::vector<TensorMapping> layout_of(Family, const GptConfig&, NamingScheme = NamingScheme::transformers);
/// The same with all parameters of the family's files: those that the Gpt lacks have a `filling`.
std::vector<TensorMapping> whole_layout_of(Family, GptConfig, NamingScheme = NamingScheme::transformers);

/// Our rows from one tensor of theirs, and back, by TensorSlice::pair_heads and TensorMapping::transposed.
/// @{
Tensor from_half_split(const Tensor& theirs, int64_t pair_heads, bool transposed = false);
Tensor to_half_split(const Tensor& ours, int64_t pair_heads, bool transposed = false);
/// @}

/// A tensor of theirs, to write.
struct ExportTensor {
  std::string name;
  Shape shape;
  std::function<Tensor(DType)> make;  ///< contiguous, on the CPU
  DType dtype = DType::f32;           ///< for write_shards()
};
/// The tensors of whole_layout_of() from the parameters of a Gpt. Errors begin with `op`.
std::vector<ExportTensor> their_tensors(std::string_view op, NamingScheme, const GptConfig&, const Params&);
bool same_bits(const Tensor&, const Tensor&);  ///< shapes, dtypes and elements, on the CPU
/// An Error "[op] <what> is inf at (0, 1)<rest>" for the first element that is not finite. The tensor is contiguous on
/// the CPU.
void check_finite(std::string_view op, std::string_view what, const Tensor&, std::string_view rest);
/// The advice for weights to write.
inline constexpr std::string_view kBeFinite =
    "It must be finite. Write bf16 or f32, or train with a lower learning rate.";

}  // namespace detail

}  // namespace tg
