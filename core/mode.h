/// @file
/// Modes of the calling thread: whether ops are recorded on the tape, what backward keeps, whether ops run at once or
/// lazily, whether results are searched for NaN and infinities, and how precisely f32 matrices are multiplied. A mode
/// is a scope object: it begins with its constructor and ends with its destructor. Scopes nest.
#pragma once
#include <tapegrad/core/util/scoped_value.h>

#include <cstdint>
#include <string_view>

namespace tg {
namespace detail {
enum class Recomputes : uint8_t {
  nothing,
  later,  // inside a RecomputeScope
  now     // ops that are emitted compute something again
};
extern constinit thread_local Recomputes t_recomputes;
}  // namespace detail

/// While it lives, ops are not recorded: there is no tape and nothing is saved for backward.
struct NoGradScope : ScopedValue<bool> {
  NoGradScope();
};

/// While it lives, ops are recorded, also inside a NoGradScope.
struct EnableGradScope : ScopedValue<bool> {
  EnableGradScope();
};

/// While it lives, ops do not run when they are called. They run when a value is read or evaluate() is called.
struct LazyScope : ScopedValue<bool> {
  LazyScope();
};

/// Saves memory: backward recomputes the outputs of cheap ops instead of keeping them. Cheap ops are norms, pointwise
/// functions, dropout, casts, and views of their results. The scope applies to ops that are recorded while it lives.
/// Backward recomputes an output once, from values that the tape keeps, for all ops that read it; gradients are the
/// same bits. Memory goes down wherever the inputs of the cheap op are saved by another op as well. Leaves, such as the
/// biases of norms, must not be written in place before backward. autograd/recompute.h does this for whole parts of a
/// model.
struct RecomputeScope : ScopedValue<detail::Recomputes> {
  RecomputeScope();
};

/// While it lives, the results of all ops are checked. The first NaN, and the first infinity that an op makes from
/// finite inputs, throws an Error of kind non_finite that names the op, its scope and its inputs. Infinities that are
/// asked for (full, masked_fill) pass. It finds where a run begins to diverge, and makes every op several times slower.
struct AnomalyScope : ScopedValue<bool> {
  AnomalyScope();
};

/// How precisely matmul() and linear() multiply f32 matrices, by the names of torch.set_float32_matmul_precision. Each
/// one is what is allowed: products whose device has no quicker way are those of `highest`. Sums are f32 throughout.
enum class MatmulPrecision : uint8_t {
  /// Operands as they are.
  highest,
  /// On CUDA, both operands rounded to TensorFloat-32 (10 bits of fraction, relative error about 5e-4). On a CPU with
  /// AMX, each operand as the sum of three bf16, of whose products the six largest count. The error is no larger than
  /// that of `highest`, unless a result hangs on elements some 2^100 times smaller than others of their row or column.
  high,
  /// Both operands rounded to bf16 (7 bits of fraction, relative error about 4e-3): on CUDA, and on CPUs with AMX or
  /// AVX512_BF16.
  medium,
};
/// "highest", "high" or "medium".
std::string_view name_of(MatmulPrecision);
/// Sets the precision of f32 matrix products that are called while it lives, and of their gradients, whenever those
/// run. Products of f64 and bf16 matrices are the same in each.
struct MatmulPrecisionScope : ScopedValue<MatmulPrecision> {
  explicit MatmulPrecisionScope(MatmulPrecision);
};

/// Whether ops of the calling thread are recorded now.
bool grad_enabled();
/// Whether the calling thread is inside a LazyScope.
bool lazy_enabled();
/// Whether the calling thread is inside a RecomputeScope.
bool recompute_enabled();
/// Whether the calling thread is inside an AnomalyScope.
bool anomaly_enabled();
/// The precision that the innermost MatmulPrecisionScope of the calling thread sets; `highest` if there is none.
MatmulPrecision matmul_precision();

}  // namespace tg
