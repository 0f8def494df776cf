/// @file
/// backward(): reverse-mode differentiation over the tape. Every vjp() emits ops, so under LazyScope the backward graph
/// is lazy, and with create_graph it can be differentiated again. Gradients are returned by the tensor's id, outside
/// the tensors, so nothing accumulates unseen. Training loops use it.
#pragma once
#include <tapegrad/core/op.h>

#include <functional>
#include <map>
#include <source_location>

namespace tg {

/// Options of backward().
struct BackwardOptions {
  bool create_graph = false;  ///< record the gradients on the tape as well; implies retain_graph
  bool retain_graph = false;  ///< keep what the tape saved, for another backward
  /// Called when the gradient of a leaf is complete, while the rest of backward is still to run: with the leaf's id and
  /// the gradient native(), after its hooks. It may replace the gradient by one of the same shape, dtype and
  /// device, or take it away; GradMap then lacks it.
  std::function<void(uint64_t leaf, Tensor& grad)> on_leaf_grad = {};
};
/// Gradients of leaves, by tensor. Those of intermediates are not kept; their hooks see them.
class GradMap {
 public:
  /// The gradient of t, in t's shape and dtype, or an empty Tensor if backward() did not reach t.
  Tensor operator[](const Tensor& t) const;
  /// The same in the dtype in which backward() computed it: bf16 for an f32 leaf that a single op cast to bf16, and
  /// whose gradient nothing was added to. It has the values of operator[], which converts it. For optimisers: they read
  /// half the bytes.
  Tensor native(const Tensor& t) const;
  /// Whether backward() reached t.
  bool contains(const Tensor& t) const;
  size_t size() const { return map_.size(); }
  /// Adds the gradients of another map, which may have tensors that this one lacks.
  GradMap& operator+=(const GradMap&);
  /// Multiplies every gradient by a number.
  GradMap& operator*=(double);
  /// The gradients native(), by the ids of the leaves and in their order: loops over them emit the same ops each
  /// time.
  /// @{
  std::map<uint64_t, Tensor>& map() { return map_; }
  const std::map<uint64_t, Tensor>& map() const { return map_; }
  /// @}

 private:
  std::map<uint64_t, Tensor> map_;
};
/// d loss / d leaf for every leaf that requires a gradient. loss has one element. An Error if it is not on the tape, if
/// an earlier backward released its tape, or if a saved tensor was written since. It names the caller's line.
GradMap backward(const Tensor& loss, BackwardOptions = {},
                 const std::source_location& = std::source_location::current());
/// Gradients of leaves from the gradient of an output: grad has its shape and dtype. Errors are those of
/// backward(loss).
GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions = {},
                 const std::source_location& = std::source_location::current());
/// Gradients of leaves from the gradients of several outputs at once, whose contributions add up. An output whose
/// gradient is empty need not be on the tape. Errors are those of backward(loss).
GradMap backward(Inputs outputs, Inputs grads, BackwardOptions = {});
/// The gradients of loss, in the order of `of`: leaves or intermediates, each in its shape and dtype. All paths count,
/// also those through another tensor of the list. Errors: those of backward(loss); a tensor that the loss does not
/// depend on.
std::vector<Tensor> grad(const Tensor& loss, Inputs of, BackwardOptions = {});
/// What value_and_grad() returns: the value of the function, without a history unless create_graph, and its gradients.
struct ValueAndGrad {
  Tensor value;
  std::vector<Tensor> grads;
};
/// A function that returns f of its inputs, one number, and the gradients of all of them. Inputs that do not require a
/// gradient need not ask for one; those must be of floating dtypes. An input that f does not use has a gradient of
/// zeros.
std::function<ValueAndGrad(Inputs)> value_and_grad(std::function<Tensor(Inputs)> f, BackwardOptions = {});

namespace detail {
// The vjp of a function of tensors that is made of ops: runs it on the tape and goes back from its outputs, with
// `grads` for them (one each; empty where none flowed), to `in` and to the tensors of `captured` (which f reads by
// other ways), no further and without calling their hooks. Returns the gradients of in, then of captured; empty where
// none flowed. Differentiable itself when gradients are recorded.
Tensors pull_back(const std::function<Tensors(Inputs)>& f, Inputs in, Inputs captured, Inputs grads);
}  // namespace detail

}  // namespace tg
