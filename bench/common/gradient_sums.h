// Gradients accumulated over passes, like PyTorch's backward without zero_grad.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/nn/params.h>

namespace tg::bench {

class GradientSums {
 public:
  explicit GradientSums(const Params& params) : parameters_(params.all()), sums_(parameters_.size()) {}
  // Creates the sums at first, later accumulates. An Error names a parameter without a gradient.
  void add(const GradMap&);
  // Creates missing sums as zeros: compiled functions can assign variables but not create them.
  void make();
  const std::vector<Tensor>& all() const { return sums_; }  // in the order of Params::all()
  const Tensor& of(std::string_view parameter) const;       // throws for an unknown parameter

 private:
  std::vector<Parameter> parameters_;
  std::vector<Tensor> sums_;
};

}  // namespace tg::bench
