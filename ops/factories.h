/// @file
/// Ops without inputs, lazy and on any device. tensor() in core/tensor.h copies host data.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <cmath>
#include <limits>

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
/// Distributions of Random.
enum class Distribution { normal, truncated_normal, uniform };
/// () -> random values: of mean a and standard deviation b, or uniform in [a, b). Keys omit the generator's state.
template <Distribution D> struct Random : OpOf<Random<D>> {
  static constexpr auto kName = D == Distribution::normal    ? "randn"
                                : D == Distribution::uniform ? "rand"
                                                             : "trunc_normal";
  Layout layout;
  double a, b;
  Rng rng;
  Random(const Layout& l, double x, double y, Rng r) : layout(l), a(x), b(y), rng(r) {}
  Traits traits() const override { return {.dynamic_attributes = true}; }
  Layouts infer(Inputs) const override { return {layout}; }
  void key(StructuralHash& k) const override { k.add(layout.shape), k.add(a), k.add(b); }
  const Rng* rng_state() const override { return &rng; }
  OpPtr for_next_step(const Rng& r) const override { return make_ref<Random>(layout, a, b, r); }
};
/// Normal values.
using RandomNormal = Random<Distribution::normal>;
/// Normal values within 3 standard deviations of the mean.
using RandomTruncatedNormal = Random<Distribution::truncated_normal>;
/// Uniform values.
using RandomUniform = Random<Distribution::uniform>;
}  // namespace op

namespace detail {
/// Largest f32 of [lo, hi); lo if they are equal.
inline float below_of(float lo, float hi) { return lo < hi ? std::nextafter(hi, lo) : lo; }
/// Least and largest T of [lo, hi), for f64, f32 and bf16; lo, rounded, if there is none. Draws in f32 may leave the
/// range when rounded.
template <class T> struct DrawnRange {
  compute_t<T> least, most;
  DrawnRange(double lo, double hi) : least(rounded(lo)), most(rounded(hi)) {
    const compute_t<T> nearest = least;
    if (double(least) < lo) least = next(least, true);
    if (double(most) >= hi) most = next(most, false);
    if (!(least <= most)) least = most = nearest;
  }
  TG_HD_INLINE compute_t<T> operator()(compute_t<T> x) const { return x < least ? least : x > most ? most : x; }

 private:
  static compute_t<T> rounded(double x) { return compute_t<T>(T(compute_t<T>(x))); }
  static compute_t<T> next(compute_t<T> x, bool up) {
    if constexpr (std::is_same_v<T, bf16>) {  // adjacent values: adjacent bits
      bf16 r(x);
      if (r.bits << 1 == 0)
        r.bits = up ? 0x0001 : 0x8001;
      else
        r.bits = uint16_t(r.bits + (up == (r.bits < 0x8000) ? 1 : -1));
      return r;
    } else {
      return std::nextafter(x, up ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity());
    }
  }
};
}  // namespace detail

/// One value everywhere. An Error if the dtype lacks it.
Tensor full(const Shape&, double value, DType = DType::f32, Device = {});
/// A tensor of zeros.
Tensor zeros(const Shape&, DType = DType::f32, Device = {});
/// A tensor of ones.
Tensor ones(const Shape&, DType = DType::f32, Device = {});
/// Zeros in a tensor's shape, dtype and device.
Tensor zeros_like(const Tensor&);
/// Ones in a tensor's shape, dtype and device.
Tensor ones_like(const Tensor&);
/// The values start, start + step, ... below stop, or above it if step is negative: (n). An Error if step is 0.
Tensor arange(double start, double stop, double step = 1, DType = DType::i64, Device = {});
/// Normal values N(mean, std^2). Advances rng by numel words. f64, f32, bf16; f64 values have f32 precision: one
/// generator serves every device bit for bit.
Tensor randn(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
/// randn() within 3 std of the mean.
Tensor trunc_normal(const Shape&, Rng&, double mean = 0, double std = 1, DType = DType::f32, Device = {});
/// Uniform values in [lo, hi). Advances rng by numel words. f64, f32, bf16; f64 values have f32 precision.
Tensor rand(const Shape&, Rng&, double lo = 0, double hi = 1, DType = DType::f32, Device = {});

}  // namespace tg
