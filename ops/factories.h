/// @file
/// Tensors made from nothing: ops without inputs, which are lazy and run on any device like the others. tensor() in
/// core/tensor.h copies host data.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

namespace tg {
namespace op {

/// () -> one value everywhere.
struct Full : OpOf<Full> {
  static constexpr auto kName = "full";
  Layout layout;
  double value;
  Full(const Layout& l, double x) : layout(l), value(x) {}
  Traits traits() const override { return {.may_be_infinite = value - value != 0}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(value); }
};
/// () -> start, start + step, ...
struct Arange : OpOf<Arange> {
  static constexpr auto kName = "arange";
  Layout layout;
  double start, step;
  Arange(const Layout& l, double a, double d) : layout(l), start(a), step(d) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(start), k.add(step); }
};
/// () -> N(mean, std^2) values. The generator's state changes at every use, so the key leaves it out.
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
/// () -> N(mean, std^2) values within 3 std of the mean. The key leaves the generator's state out.
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
/// () -> uniform values in [lo, hi). The key leaves the generator's state out.
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

/// A tensor with one value everywhere. An Error if the dtype has no such value.
Tensor full(const Shape&, double value, DType = DType::f32, Device = {});
/// A tensor of zeros.
Tensor zeros(const Shape&, DType = DType::f32, Device = {});
/// A tensor of ones.
Tensor ones(const Shape&, DType = DType::f32, Device = {});
/// Zeros in the shape and dtype of a tensor, on its device.
Tensor zeros_like(const Tensor&);
/// Ones in the shape and dtype of a tensor, on its device.
Tensor ones_like(const Tensor&);
/// The values start, start + step, ... below stop, or above it if step is negative: (n). An Error if step is 0.
Tensor arange(double start, double stop, double step = 1, DType = DType::i64, Device = {});
/// Normal values N(mean, std^2). Advances rng by numel words. f64, f32, bf16; f64 values have the precision of f32,
/// because one generator serves every device bit for bit.
Tensor randn(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
/// Normal values N(mean, std^2), without those more than 3 std from the mean. Advances rng by numel words. f64, f32,
/// bf16; f64 values have the precision of f32.
Tensor trunc_normal(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
/// Uniform values in [lo, hi). Advances rng by numel words. f64, f32, bf16; f64 values have the precision of f32.
Tensor rand(const Shape&, Rng&, double lo = 0, double hi = 1, DType = DType::f32, Device = {});

}  // namespace tg
