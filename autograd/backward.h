// Reverse mode over the tape. Every vjp emits ops, so under LazyScope the backward graph is lazy, and with create_graph
// it can be differentiated again. Gradients are returned by id, outside the tensors: nothing accumulates behind one's
// back.
#pragma once
#include <tapegrad/core/op.h>

#include <unordered_map>

namespace tg {

struct BackwardOptions {
  bool create_graph = false;  // the gradients are tracked themselves; implies retain_graph
  bool retain_graph = false;  // keep what the tape saved, for another backward
};
// Gradients of leaves. Those of intermediates are not kept; their hooks see them.
class GradMap {
 public:
  // The gradient of t, with t's shape and dtype, or an empty Tensor when t was not reached.
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
// d loss / d leaf for every tracked leaf. loss has one element. An Error when it is untracked, when its tape was
// released by an earlier backward, or when a saved tensor was changed since.
GradMap backward(const Tensor& loss, BackwardOptions = {});
// The same for an output of any shape: grad has its shape and dtype.
GradMap backward(const Tensor& output, const Tensor& grad, BackwardOptions = {});

}  // namespace tg
