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
  later,  // RecomputeScope
  now     // emitting a recomputation
};
extern constinit thread_local Recomputes t_recomputes;
}  // namespace detail

/// Ops are not recorded; nothing is saved for backward.
struct NoGradScope : ScopedValue<bool> {
  [[nodiscard]] NoGradScope();
};

/// Ops are recorded, also inside a NoGradScope.
struct EnableGradScope : ScopedValue<bool> {
  [[nodiscard]] EnableGradScope();
};

/// Ops run only when a value is read or eval() is called.
struct LazyScope : ScopedValue<bool> {
  [[nodiscard]] LazyScope();
};

/// Saves memory: backward recomputes outputs of cheap ops (norms, rope, pointwise functions, dropout, casts, views of
/// their results) that were recorded in this scope, once, from values on the tape, bit for bit. It saves only where
/// another op keeps the cheap op's inputs. Leaves such as norms' biases must not be written in place before backward.
/// autograd/recompute.h recomputes whole parts of a model.
struct RecomputeScope : ScopedValue<detail::Recomputes> {
  [[nodiscard]] RecomputeScope();
};

/// Checks all results: the first NaN, or infinity from finite inputs, is an Error of kind non_finite with op, scope and
/// inputs. Intended infinities pass (full, masked_fill). Ops become several times slower.
struct AnomalyScope : ScopedValue<bool> {
  [[nodiscard]] AnomalyScope();
};

/// Precision of f32 operands in matmul() and linear(), named as in torch.set_float32_matmul_precision. Devices without
/// a faster method use `highest`. Accumulators are f32.
enum class MatmulPrecision : uint8_t {
  /// Operands are not rounded.
  highest,
  /// CUDA: both operands rounded to TensorFloat-32 (10 bits of fraction, relative error about 5e-4). CPU with AMX:
  /// operands are sums of three bf16 terms; the six largest products count. The error is at most that of `highest`,
  /// unless a result depends on elements about 2^100 times smaller than others of their row or column.
  high,
  /// Both operands rounded to bf16 (7 bits of fraction, relative error about 4e-3), on CUDA and on CPUs with AMX or
  /// AVX512_BF16.
  medium,
};
/// "highest", "high" or "medium".
std::string_view name_of(MatmulPrecision);
/// Sets the precision of f32 matmuls called in this scope, and of their gradients.
struct MatmulPrecisionScope : ScopedValue<MatmulPrecision> {
  [[nodiscard]] explicit MatmulPrecisionScope(MatmulPrecision);
};

/// Whether the thread records ops.
bool grad_enabled();
/// Whether the thread is in a LazyScope.
bool lazy_enabled();
/// Whether the thread is in a RecomputeScope.
bool recompute_enabled();
/// Whether the thread is in an AnomalyScope.
bool anomaly_enabled();
/// Thread's innermost MatmulPrecisionScope, or `highest`.
MatmulPrecision matmul_precision();

}  // namespace tg
