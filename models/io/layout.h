/// @file
/// Tensor names and layouts of a Gpt in other programs. A table per family, for reading and writing: rows of our
/// tensors in the other's, transposition, row order.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Sets of names. Mistral uses llama.
enum class Family { none, gpt2, llama, qwen2, qwen3 };
/// Names of families, as in config.json.
template <> inline constexpr EnumNames<5> kEnumNames<Family>{"family", {"none", "gpt2", "llama", "qwen2", "qwen3"}};

namespace detail {
/// The family whose files can hold this configuration, or none.
Family family_of(const GptConfig&);
/// Differences from the nearest family, "norm is layer_norm, not rms_norm"; "" if family_of() is not none.
std::string family_mismatch(const GptConfig&);

/// Our tensor's rows that form an external tensor.
struct TensorSlice {
  std::string theirs;
  int64_t rows = 0;
  /// Heads with rope pairs; 0: equal row order. External: first elements of all pairs in a head's first half, second
  /// ones in the other. Here: adjacent pairs.
  int64_t pair_heads = 0;
};
/// Our tensor in external ones.
struct TensorMapping {
  std::string ours;
  std::vector<TensorSlice> pieces;
  int64_t columns = 0;      ///< 0: one dimension
  bool transposed = false;  ///< the external one is (columns, rows)
  /// Value of all elements, 0 or 1, if the Gpt lacks the tensor.
  std::optional<float> filling = {};

  Shape shape() const;                    ///< our shape
  Shape shape(const TensorSlice&) const;  ///< external shape
};
using TensorMappings = std::vector<TensorMapping>;
/// Programs with names of tensors.
enum class NamingScheme { transformers, llama_cpp };
/// Tensors of a Gpt, in order. An Error for Family::none.
TensorMappings layout_of(Family, const GptConfig&, NamingScheme = NamingScheme::transformers);
/// layout_of() with all parameters of the family; those that the Gpt lacks have a `filling`.
TensorMappings whole_layout_of(Family, GptConfig, NamingScheme = NamingScheme::transformers);

/// Converts external rows to a Gpt's, and back (TensorSlice::pair_heads, TensorMapping::transposed).
/// @{
Tensor from_half_split(const Tensor& theirs, int64_t pair_heads, bool transposed = false);
Tensor to_half_split(const Tensor& ours, int64_t pair_heads, bool transposed = false);
/// @}

/// An external tensor to write.
struct ExportTensor {
  std::string name;
  Shape shape;
  std::function<Tensor(DType)> make;  ///< contiguous, CPU
  DType dtype = DType::f32;           ///< dtype for write_shards()
};
/// Tensors of whole_layout_of() from the parameters of a Gpt. Errors begin with `op`.
std::vector<ExportTensor> their_tensors(std::string_view op, NamingScheme, const GptConfig&, const Params&);
bool same_bits(const Tensor&, const Tensor&);  ///< shapes, dtypes, elements, on the CPU
/// An Error "[op] <what> is inf at (0, 1)<rest>" for the first element that is not finite. Contiguous, CPU.
void check_finite(std::string_view op, std::string_view what, const Tensor&, std::string_view rest);
/// Advice of Errors about weights to write.
inline constexpr std::string_view kBeFinite =
    "It must be finite. Write bf16 or f32, or train with a lower learning rate.";

}  // namespace detail

}  // namespace tg
