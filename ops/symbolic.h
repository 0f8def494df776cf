/// @file
/// Sym: a Tensor or a number in a formula, for ops/pointwise.h. Its templates f and df compute with numbers inside
/// kernels; with Syms they emit ops, for derivatives of any order.
#pragma once
#include <tapegrad/core/tensor.h>

namespace tg {

/// A tensor or a number in a formula.
class Sym {
 public:
  explicit Sym(double number) : number_(number) {}
  explicit Sym(const Tensor& t) : tensor_(t) {}
  bool is_number() const { return !tensor_; }
  double number() const { return number_; }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  double number_ = 0;
};
/// Result of a comparison: a bool tensor, or a bool. `compared` decides dtype and device.
struct SymBool {
  Tensor mask, compared;
  bool value = false;
};

/// Arithmetic: numbers at once, tensors by ops.
/// @{
Sym operator+(const Sym&, const Sym&);
Sym operator-(const Sym&, const Sym&);
Sym operator*(const Sym&, const Sym&);
Sym operator/(const Sym&, const Sym&);
Sym operator-(const Sym&);
/// @}
/// Comparisons: numbers at once, tensors by ops.
/// @{
SymBool operator==(const Sym&, const Sym&);
SymBool operator<(const Sym&, const Sym&);
SymBool operator<=(const Sym&, const Sym&);
SymBool operator>(const Sym&, const Sym&);
SymBool operator>=(const Sym&, const Sym&);
/// @}

/// Functions of Sym next to those of core/math.h, for derivatives.
namespace math {
/// Functions of core/math.h: numbers at once, tensors by an op.
/// @{
Sym exp(const Sym&);
Sym log(const Sym&);
Sym sqrt(const Sym&);
Sym rsqrt(const Sym&);
Sym tanh(const Sym&);
Sym sigmoid(const Sym&);
Sym erf(const Sym&);
Sym sin(const Sym&);
Sym cos(const Sym&);
Sym pow(const Sym&, const Sym&);
Sym select(const SymBool&, const Sym& yes, const Sym& no);
/// @}
}  // namespace math
}  // namespace tg
