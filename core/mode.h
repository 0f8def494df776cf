/// @file
/// Modes of the calling thread, as scope objects: a mode lasts from constructor to destructor. Scopes nest.
#pragma once
#include <tapegrad/core/util/scoped_value.h>

#include <cstdint>
#include <string_view>

namespace tg {
namespace detail {
enum class Recomputes : uint8_t {
  nothing,
  later,  // inside a RecomputeScope
  now     // recomputation is being emitted
};
extern constinit thread_local Recomputes t_recomputes;
}  // namespace detail

/// While it lives, ops are not recorded and nothing is saved for backward.
struct NoGradScope : ScopedValue<bool> {
  [[nodiscard]] NoGradScope();
};

/// While it lives, ops are recorded, also inside a NoGradScope.
struct EnableGradScope : ScopedValue<bool> {
  [[nodiscard]] EnableGradScope();
};

/// While it lives, ops run only when a value is read or eval() is called.
struct LazyScope : ScopedValue<bool> {
  [[nodiscard]] LazyScope();
};

/// Saves memory: backward recomputes the outputs of cheap ops instead of keeping them. Cheap ops are norms, pointwise
/// functions, dropout, casts, and views of their results. The scope applies to ops recorded while it lives. Backward
/// recomputes an output once, from values on the tape; gradients have the same bits. Memory falls wherever another op
/// saves the inputs of the cheap op as well. Leaves, such as the biases of norms, must not be written in place before
/// backward. autograd/recompute.h does this for whole parts of a model.
struct RecomputeScope : ScopedValue<detail::Recomputes> {
  [[nodiscard]] RecomputeScope();
};

/// While it lives, all results are checked. The first NaN, and the first infinity from finite inputs, throws an Error
/// of kind non_finite that names the op, its scope and its inputs. Intended infinities pass (full, masked_fill). Every
/// op becomes several times slower.
struct AnomalyScope : ScopedValue<bool> {
  [[nodiscard]] AnomalyScope();
};

/// The allowed precision of f32 operands in matmul() and linear(), by the names of torch.set_float32_matmul_precision.
/// Devices without a faster method compute as `highest`. Accumulators are f32.
enum class MatmulPrecision : uint8_t {
  /// Operands are not rounded.
  highest,
  /// CUDA: both operands rounded to TensorFloat-32 (10 bits of fraction, relative error about 5e-4). CPU with AMX: each
  /// operand is the sum of three bf16 terms, and the six largest of their products count. The error is at most that of
  /// `highest`, unless a result depends on elements about 2^100 times smaller than others of their row or column.
  high,
  /// Both operands rounded to bf16 (7 bits of fraction, relative error about 4e-3), on CUDA and on CPUs with AMX or
  /// AVX512_BF16.
  medium,
};
/// "highest", "high" or "medium".
std::string_view name_of(MatmulPrecision);
/// Sets the precision of f32 matmuls that are called while it lives, and of their gradients at any time. f64 and bf16
/// are unaffected.
struct MatmulPrecisionScope : ScopedValue<MatmulPrecision> {
  [[nodiscard]] explicit MatmulPrecisionScope(MatmulPrecision);
};

/// Whether the calling thread records ops.
bool grad_enabled();
/// Whether the calling thread is inside a LazyScope.
bool lazy_enabled();
/// Whether the calling thread is inside a RecomputeScope.
bool recompute_enabled();
/// Whether the calling thread is inside an AnomalyScope.
bool anomaly_enabled();
/// The precision of the innermost MatmulPrecisionScope of the calling thread; `highest` without one.
MatmulPrecision matmul_precision();

}  // namespace tg
