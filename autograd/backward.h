/// @file
/// Reverse-mode differentiation over the tape. Every vjp() emits ops: the backward graph can be lazy, and
/// differentiable by create_graph. Gradients are returned by tensor id: nothing accumulates implicitly.
#pragma once
#include <tapegrad/core/op.h>

#include <functional>
#include <map>
#include <source_location>

namespace tg {

/// Options of backward().
struct BackwardOptions {
  bool create_graph = false;  ///< record gradients on the tape; implies retain_graph
  bool retain_graph = false;  ///< keep saved values for another backward
  /// Called with the id and the native() gradient of each complete leaf, after its hooks, while backward still runs.
  /// May replace the gradient by one of the same shape, dtype and device, or empty it; GradMap then lacks it.
  std::function<void(uint64_t leaf, Tensor& grad)> on_leaf_grad = {};
};
/// Gradients of leaves, by tensor. Gradients of intermediates are not kept; their hooks see them.
class GradMap {
 public:
  /// A tensor, and the line that asks for its gradient.
  struct At {
    const Tensor& tensor;
    std::source_location where;
    At(const Tensor& t, const std::source_location& line = std::source_location::current()) : tensor(t), where(line) {}
  };
  /// Gradient of t in its shape and dtype, or an empty Tensor if backward() did not reach t. An Error if t is no leaf.
  /// It names the caller's line, as does the Error of an op that gets the empty Tensor.
  Tensor operator[](const At& t) const;
  /// Gradient of t in the dtype that backward() computed: bf16 for an f32 leaf that a single op cast to bf16, without
  /// other contributions; optimisers then read half the bytes.
  Tensor native(const Tensor& t) const;
  /// True if backward() reached t.
  bool contains(const Tensor& t) const;
  size_t size() const { return map_.size(); }
  /// Adds another map's gradients, which may have more tensors.
  GradMap& operator+=(const GradMap&);
  /// Multiplies every gradient by a number.
  GradMap& operator*=(double);
  /// Gradients native(), ordered by leaf id: loops over them always emit the same ops.
  /// @{
  std::map<uint64_t, Tensor>& map() { return map_; }
  const std::map<uint64_t, Tensor>& map() const { return map_; }
  /// @}

 private:
  std::map<uint64_t, Tensor> map_;
};
/// d loss / d leaf for every leaf that requires a gradient. loss has one element. An Error, which names the caller's
/// line, if it is not on the tape, if an earlier backward released its tape, or if a saved tensor was written since.
GradMap backward(const Tensor& loss, BackwardOptions = {},
                 const std::source_location& = std::source_location::current());
/// Gradients of leaves, given an output's in its shape and dtype. Errors: those of backward(loss).
GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions = {},
                 const std::source_location& = std::source_location::current());
/// Gradients of leaves, given those of several outputs; contributions are summed. An output with an empty gradient need
/// not be on the tape. Errors: those of backward(loss).
GradMap backward(Inputs outputs, Inputs grads, BackwardOptions = {});
/// Gradients of loss with respect to leaves or intermediates `of`, in their order, shapes and dtypes. All paths count,
/// also through other tensors of the list. Errors: those of backward(loss); a tensor that the loss does not depend on.
std::vector<Tensor> grad(const Tensor& loss, Inputs of, BackwardOptions = {});
/// Gradients of outputs of any shape with respect to leaves or intermediates `of`, in their order, shapes and dtypes:
/// sums over the outputs, given their gradients `grads` in their shapes and dtypes. An output with an empty gradient
/// does not count. Errors: those of backward(outputs, grads); a tensor that no output depends on.
std::vector<Tensor> grad(Inputs outputs, Inputs of, Inputs grads, BackwardOptions = {});
/// Function's value, without history unless create_graph, and its gradients.
struct ValueAndGrad {
  Tensor value;
  std::vector<Tensor> grads;
};
/// A function that returns f of its inputs, one number, and the gradients of all inputs, which require one or have
/// floating dtypes. Unused inputs have gradients of zeros.
std::function<ValueAndGrad(Inputs)> value_and_grad(std::function<Tensor(Inputs)> f, BackwardOptions = {});

namespace detail {
// vjp of a function f made of ops. Runs f on the tape and goes backward, given its outputs' gradients `grads`, to `in`
// and `captured` (other tensors that f reads), without their hooks. Returns the gradients of both in order; empty for
// none, like `grads`. Differentiable if gradients are recorded.
Tensors pull_back(const std::function<Tensors(Inputs)>& f, Inputs in, Inputs captured, Inputs grads);
}  // namespace detail

}  // namespace tg
