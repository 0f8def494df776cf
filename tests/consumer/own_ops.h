// Three custom ops with kernels for the CPU (own_ops.cpp) and CUDA (own_ops.cu).
#pragma once
#include <tapegrad/ops/ops.h>

namespace own {

/// x / (1 + |x|): a function of one operand is a struct. `df` is instantiated for symbols, too: it has no branches.
struct Softsign {
  static constexpr char kName[] = "own_softsign", kGradName[] = "own_softsign_grad";
  static constexpr tg::op::Saves kSaves{.x = true};  // what the derivative reads
  template <class T> TG_HD_INLINE static T size(T x) { return tg::math::select(x < T(0), -x, x); }
  template <class T> TG_HD_INLINE static T f(T x) { return x / (T(1) + size(x)); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return T(1) / ((T(1) + size(x)) * (T(1) + size(x))); }
};

/// (x (..., N)) -> each row of N minus its mean.
struct Centred : tg::OpOf<Centred> {
  static constexpr auto kName = "own_centred";
  tg::Layouts infer(tg::Inputs) const override;
  tg::Tensors vjp(const tg::Vjp&) const override;
};

/// (x (..., N)) -> x divided by its length: the root of the sum of all squares, plus epsilon.
struct Unit : tg::OpOf<Unit> {
  static constexpr auto kName = "own_unit";
  double epsilon;
  explicit Unit(double e) : epsilon(e) {}
  tg::Layouts infer(tg::Inputs) const override;
  tg::Mask saves_in(tg::Mask) const override { return tg::mask_of(0); }
  tg::Tensors vjp(const tg::Vjp&) const override;
  void key(tg::StructuralHash& k) const override { k.add(epsilon); }  // the attributes
};

/// x / (1 + |x|), in the shape and dtype of x: f64, f32 or bf16.
tg::Tensor softsign(const tg::Tensor& x);
/// x (..., N) minus the means of its rows. f64, f32 or bf16.
tg::Tensor centred(const tg::Tensor& x);
/// x (..., N) divided by its length. f64, f32 or bf16.
tg::Tensor unit(const tg::Tensor& x, double epsilon = 1e-6);

}  // namespace own
