#include "common/gradient_sums.h"

#include <tapegrad/core/check.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>

namespace tg::bench {

void GradientSums::add(const GradMap& grads) {
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
void GradientSums::make() {
  for (size_t i = 0; i < sums_.size(); ++i)
    if (!sums_[i]) sums_[i] = zeros_like(parameters_[i].tensor);
}
const Tensor& GradientSums::of(std::string_view parameter) const {
  const auto at = std::ranges::find(parameters_, parameter, &Parameter::name);
  TG_CHECK(at != parameters_.end(), value, "[gradient_sums] there is no parameter '{}'. Take a name of Params::all().",
           parameter);
  return sums_[size_t(at - parameters_.begin())];
}

}  // namespace tg::bench
