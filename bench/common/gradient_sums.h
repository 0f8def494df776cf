// Gradients accumulated over passes, like PyTorch's backward without zero_grad.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>

namespace tg::bench {

class GradientSums {
 public:
  explicit GradientSums(const Params& params) : parameters_(params.all()), sums_(parameters_.size()) {}
  // Creates the sums at first, later accumulates. An Error names a parameter without a gradient.
  void add(const GradMap& grads) {
    const NoGradScope off;
    for (size_t i = 0; i < sums_.size(); ++i) {
      const Tensor g = grads[parameters_[i].tensor];
      TG_CHECK(g, state, "[gradient_sums] {} has no gradient. Each parameter of the model must have one.",
               parameters_[i].name);
      if (sums_[i])
        sums_[i].assign(sums_[i] + g);
      else
        sums_[i] = g;
    }
  }
  // Creates missing sums as zeros: compiled functions can assign variables but not create them.
  void make() {
    for (size_t i = 0; i < sums_.size(); ++i)
      if (!sums_[i]) sums_[i] = zeros_like(parameters_[i].tensor);
  }
  const std::vector<Tensor>& all() const { return sums_; }  // order of Params::all()
  const Tensor& of(std::string_view parameter) const {
    const auto at = std::ranges::find(parameters_, parameter, &Parameter::name);
    TG_CHECK(at != parameters_.end(), value,
             "[gradient_sums] there is no parameter '{}'. Take a name of Params::all().", parameter);
    return sums_[size_t(at - parameters_.begin())];
  }

 private:
  std::vector<Parameter> parameters_;
  std::vector<Tensor> sums_;
};

}  // namespace tg::bench
