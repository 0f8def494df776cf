/// @file
/// Dropout (Srivastava et al. 2014) by a counter-based generator: the mask is a function of the generator's state and
/// the position of the element, so nothing is saved, and the gradient is the same op on the gradient.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

namespace tg {
namespace op {

/// the generator's state changes at every use: not in the key
struct Dropout : OpOf<Dropout> {
  static constexpr auto kName = "dropout";
  double p;
  Rng rng;
  Dropout(double probability, Rng r) : p(probability), rng(r) {}
  Traits traits() const override {
    return {.may_alias = bits(0), .dynamic_attributes = true, .cheap_to_recompute = true};
  }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(p); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<Dropout>(p, r); }
};
}  // namespace op

/// Element i, counted in row-major order, becomes 0 where uniform(random_word(rng, i)) < p, and x / (1 - p) elsewhere.
/// Advances rng by numel. p == 0 is x itself and draws nothing; an Error when p is outside of [0, 1). f64, f32, bf16.
Tensor dropout(const Tensor& x, double p, Rng& rng);

}  // namespace tg
