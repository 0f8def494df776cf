/// @file
/// Tensors made from nothing: ops without inputs, so that they are lazy and run on any device like the rest.
/// Copies of host data are made by tensor() in core/tensor.h.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

namespace tg {
namespace op {

struct Full : OpOf<Full> {
  static constexpr auto kName = "full";
  Layout layout;
  double value;
  Full(const Layout& l, double x) : layout(l), value(x) {}
  Traits traits() const override { return {.may_be_infinite = value - value != 0}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(value); }
};
/// start, start + step, ...
struct Arange : OpOf<Arange> {
  static constexpr auto kName = "arange";
  Layout layout;
  double start, step;
  Arange(const Layout& l, double a, double d) : layout(l), start(a), step(d) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(start), k.add(step); }
};
/// the generator's state changes at every use: not in the key
struct RandomNormal : OpOf<RandomNormal> {
  static constexpr auto kName = "randn";
  Layout layout;
  double mean, std;
  Rng rng;
  RandomNormal(const Layout& l, double m, double s, Rng r) : layout(l), mean(m), std(s), rng(r) {}
  Traits traits() const override { return {.dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(mean), k.add(std); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<RandomNormal>(layout, mean, std, r); }
};
struct RandomTruncatedNormal : OpOf<RandomTruncatedNormal> {
  static constexpr auto kName = "trunc_normal";
  Layout layout;
  double mean, std;
  Rng rng;
  RandomTruncatedNormal(const Layout& l, double m, double s, Rng r) : layout(l), mean(m), std(s), rng(r) {}
  Traits traits() const override { return {.dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(mean), k.add(std); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<RandomTruncatedNormal>(layout, mean, std, r); }
};
struct RandomUniform : OpOf<RandomUniform> {
  static constexpr auto kName = "rand";
  Layout layout;
  double lo, hi;
  Rng rng;
  RandomUniform(const Layout& l, double a, double b, Rng r) : layout(l), lo(a), hi(b), rng(r) {}
  Traits traits() const override { return {.dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(lo), k.add(hi); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<RandomUniform>(layout, lo, hi, r); }
};
}  // namespace op

Tensor full(const Shape&, double value, DType = DType::f32, Device = {});
Tensor zeros(const Shape&, DType = DType::f32, Device = {});
Tensor ones(const Shape&, DType = DType::f32, Device = {});
Tensor zeros_like(const Tensor&);
Tensor ones_like(const Tensor&);
/// (n) values start, start + step, ... below stop (above it when step is negative). An Error when step is 0.
Tensor arange(double start, double stop, double step = 1, DType = DType::i64, Device = {});
/// Normal N(mean, std) values, the same without those that are more than 3 std from the mean, and uniform [lo, hi)
/// values; advance rng by numel. Dtypes f64, f32, bf16 (f64 values have the precision of f32: one generator serves
/// every device bit for bit).
Tensor randn(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
Tensor trunc_normal(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
Tensor rand(const Shape&, Rng&, double lo = 0, double hi = 1, DType = DType::f32, Device = {});

}  // namespace tg
