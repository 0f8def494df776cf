/// @file
/// Modes of the calling thread: whether ops are recorded on the tape and what of them is kept for backward, whether
/// they run at once or when read, whether their results are searched for NaN and infinities, and how exactly f32
/// matrices are multiplied. RAII only; all nest.
#pragma once
#include <tapegrad/core/scoped_value.h>

#include <cstdint>

namespace tg {
namespace detail {
enum class Recomputes : uint8_t {
  nothing,
  later,  // inside a RecomputeScope
  now     // ops that are emitted compute something again
};
}  // namespace detail

/// Ops emitted during its life are not recorded: no tape, nothing saved.
struct NoGradScope : ScopedValue<bool> {
  NoGradScope();
};

/// Inside a NoGradScope: ops emitted during its life are recorded again.
struct EnableGradScope : ScopedValue<bool> {
  EnableGradScope();
};

/// Ops emitted during its life are not run until a value is read or evaluate() is called.
struct LazyScope : ScopedValue<bool> {
  LazyScope();
};

/// What ops recorded during its life save for backward is not kept where a cheap op made it, one that was recorded
/// during its life too: a norm, a pointwise function, dropout, a cast, or views of their results. Backward computes it
/// again, out of what the tape keeps anyway and leaves, once for all that read it; so memory goes down wherever that
/// op's own inputs are saved. The same bits everywhere. Leaves that are read again, biases of norms too, must not be
/// written in place until backward. For whole parts of a model see autograd/recompute.h.
struct RecomputeScope : ScopedValue<detail::Recomputes> {
  RecomputeScope();
};

/// All results of ops that run during its life are read: the first NaN, and the first infinity that an op makes out of
/// finite inputs (unless it is told to: full, masked_fill), is an Error of kind non_finite that names the op, its scope
/// and its inputs. For finding where a run begins to diverge; it makes every op several times slower.
struct AnomalyScope : ScopedValue<bool> {
  AnomalyScope();
};

/// How matmul and linear multiply f32 matrices.
enum class MatmulPrecision : uint8_t {
  f32,   ///< f32 throughout: relative error about 1e-7
  tf32,  ///< both operands rounded to TensorFloat-32 (10 bits of fraction, error about 5e-4), sums in f32
};
/// Products emitted during its life are computed so, and their gradients as well, whenever those are taken. TF32 is
/// what the tensor cores of a GPU (compute capability 8.0 and later) multiply f32 in; a product that has none, because
/// its operands are f64 or bf16 or are not on CUDA, is an Error under MatmulPrecision::tf32.
struct MatmulPrecisionScope : ScopedValue<MatmulPrecision> {
  explicit MatmulPrecisionScope(MatmulPrecision);
};

bool grad_enabled();
bool lazy_enabled();
bool recompute_enabled();
bool anomaly_enabled();
MatmulPrecision matmul_precision();  ///< strict, but inside an MatmulPrecisionScope

}  // namespace tg
