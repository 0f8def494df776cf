// Gradients that are never set to zero: each pass adds to those before, as PyTorch's backward does where nobody calls
// zero_grad. Users: bench_gpt_timeit, bench_lm_profile.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/nn/params.h>

namespace tg::bench {

class GradientSums {
 public:
  explicit GradientSums(const Params& params) : parameters_(params.all()), sums_(parameters_.size()) {}
  // The first pass makes the sums, later ones add. An Error names a parameter that has no gradient.
  void add(const GradMap&);
  // Those that no pass has made yet become zeros: a compiled function can assign a variable, but make none.
  void make();
  const std::vector<Tensor>& all() const { return sums_; }  // in the order of Params::all()
  const Tensor& of(std::string_view parameter) const;       // an Error when there is no such parameter

 private:
  std::vector<Parameter> parameters_;
  std::vector<Tensor> sums_;
};

}  // namespace tg::bench
