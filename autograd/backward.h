/// @file
/// Reverse mode over the tape. Every vjp emits ops, so under LazyScope the backward graph is lazy, and with
/// create_graph it can be differentiated again. Gradients are returned by id, outside the tensors: nothing accumulates
/// behind one's back.
#pragma once
#include <tapegrad/core/op.h>

#include <functional>
#include <unordered_map>

namespace tg {

struct BackwardOptions {
  bool create_graph = false;  ///< the gradients are tracked themselves; implies retain_graph
  bool retain_graph = false;  ///< keep what the tape saved, for another backward
};
/// Gradients of leaves. Those of intermediates are not kept; their hooks see them.
class GradMap {
 public:
  /// The gradient of t, with t's shape and dtype, or an empty Tensor when t was not reached.
  Tensor operator[](const Tensor& t) const {
    auto it = map_.find(t.id());
    return it == map_.end() ? Tensor() : it->second;
  }
  bool contains(const Tensor& t) const { return map_.contains(t.id()); }
  size_t size() const { return map_.size(); }
  std::unordered_map<uint64_t, Tensor>& map() { return map_; }
  const std::unordered_map<uint64_t, Tensor>& map() const { return map_; }

 private:
  std::unordered_map<uint64_t, Tensor> map_;
};
/// d loss / d leaf for every tracked leaf. loss has one element. An Error when it is untracked, when its tape was
/// released by an earlier backward, or when a saved tensor was changed since.
GradMap backward(const Tensor& loss, BackwardOptions = {});
/// The same for an output of any shape: grad has its shape and dtype.
GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions = {});
/// The same for several outputs at once, whose contributions add up; an output without a gradient may be untracked.
GradMap backward(Inputs outputs, Inputs grads, BackwardOptions = {});

namespace detail {
// The vjp of a function of tensors that is made of ops: runs it on the tape and goes back from its outputs, with
// `grads` for them (one each; empty where none flowed), to `in` and to the tensors of `captured` (which f reads by
// other ways), no further and without calling their hooks. Returns the gradients of in, then of captured; empty where
// none flowed. Differentiable itself when gradients are recorded.
Tensors pull_back(const std::function<Tensors(Inputs)>& f, Inputs in, Inputs captured, Inputs grads);
}  // namespace detail

}  // namespace tg
