/// @file
/// Dropout (Srivastava et al., 2014) by a counter-based generator. Its state and the element's position give the mask:
/// nothing is saved, and the gradient is the same op.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

namespace tg {
namespace op {

/// (x) -> x with elements dropped. Keys omit the generator's state.
struct Dropout : OpOf<Dropout> {
  static constexpr auto kName = "dropout";
  double p;
  Rng rng;
  Dropout(double probability, Rng r) : p(probability), rng(r) {}
  Traits traits() const override {
    return {.may_alias = mask_of(0), .dynamic_attributes = true, .cheap_to_recompute = true};
  }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(p); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<Dropout>(p, r); }
};
}  // namespace op

/// Sets each element to 0 with probability p and divides the others by 1 - p. Element i in row-major order becomes 0 if
/// uniform(random_word(rng, i)) < p. Advances rng by numel words, except for p == 0. f64, f32, bf16. An Error if p is
/// outside [0, 1).
Tensor dropout(const Tensor& x, double p, Rng& rng);

}  // namespace tg
