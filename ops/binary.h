/// @file
/// Pointwise ops of two tensors that broadcast, or of a tensor and a number. One struct per function is the only
/// source; kernels and tests fold over BinaryFns. Run-time compilation reads the functions of this header, pointwise.h
/// and comparison.h alone: TG_FUNCTIONS_ONLY (cuda/jit/chain_kernel.h).
#pragma once
#include <tapegrad/core/math.h>
#ifndef TG_FUNCTIONS_ONLY
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/symbolic.h>
#endif

namespace tg {
namespace op {

/// A list of types to fold over.
template <class... T> struct TypeList {};
/// Interval of test samples. Kinks are at multiples of `cell`: samples keep a fifth of a cell from them, and a tenth
/// from each other.
struct Domain {
  double lo, hi, cell = 0;
};
/// True if F declares kIntegers: it also takes i64 and i32.
template <class F> inline constexpr bool takes_integers = requires { F::kIntegers; };

/// x + y. The second op name is for a number on one side. Functions define vjp() by other ops, or dx() and dy() for
/// gradient ops.
struct Add {
  static constexpr char kName[] = "add", kScalarName[] = "add_scalar";
  static constexpr bool kIntegers = true;
  static constexpr Domain kDomain{-2, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x + y; }
  static Mask saves(Mask) { return 0; }
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
/// x - y.
struct Sub {
  static constexpr char kName[] = "sub", kScalarName[] = "sub_scalar";
  static constexpr bool kIntegers = true;
  static constexpr Domain kDomain{-2, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x - y; }
  static Mask saves(Mask) { return 0; }
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
/// x * y.
struct Mul {
  static constexpr char kName[] = "mul", kScalarName[] = "mul_scalar";
  static constexpr bool kIntegers = true;
  static constexpr Domain kDomain{-2, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x * y; }
  static Mask saves(Mask tracked) { return (tracked & 1) << 1 | (tracked & 2) >> 1; }  ///< x for dy, y for dx
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
/// x / y.
struct Div {
  static constexpr char kName[] = "div", kScalarName[] = "div_scalar";
  static constexpr Domain kDomain{0.5, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x / y; }
  static Mask saves(Mask tracked) { return tracked & 2 ? mask_of(0, 1) : mask_of(1); }
  static Mask saves_scalar(bool left) { return left; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
/// Larger of x and y; NaN if one is NaN. Equal operands share the gradient.
struct Maximum {
  static constexpr char kName[] = "maximum", kScalarName[] = "maximum_scalar";
  static constexpr char kGradName[] = "maximum_grad", kScalarGradName[] = "maximum_scalar_grad";
  static constexpr bool kIntegers = true;
  static constexpr Domain kDomain{-2, 2, 1};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return math::select((x > y) | (x != x), x, y); }
  template <class T> TG_HD_INLINE static T dx(T x, T y) {
    return math::select(x == y, T(0.5), math::select(x < y, T(0), T(1)));
  }
  template <class T> TG_HD_INLINE static T dy(T x, T y) { return dx(y, x); }
};
/// Smaller of x and y; NaN if one is NaN. Equal operands share the gradient.
struct Minimum {
  static constexpr char kName[] = "minimum", kScalarName[] = "minimum_scalar";
  static constexpr char kGradName[] = "minimum_grad", kScalarGradName[] = "minimum_scalar_grad";
  static constexpr bool kIntegers = true;
  static constexpr Domain kDomain{-2, 2, 1};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return math::select((x < y) | (x != x), x, y); }
  template <class T> TG_HD_INLINE static T dx(T x, T y) {
    return math::select(x == y, T(0.5), math::select(x > y, T(0), T(1)));
  }
  template <class T> TG_HD_INLINE static T dy(T x, T y) { return dx(y, x); }
};
/// x^y; x^0 is 1, also for 0 and NaN.
struct Pow {
  static constexpr char kName[] = "pow", kScalarName[] = "pow_scalar";
  static constexpr char kGradName[] = "pow_grad", kScalarGradName[] = "pow_scalar_grad";
  static constexpr Domain kDomain{0.5, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return math::pow(x, y); }
  /// y x^(y-1), 0 for y = 0. Selects the exponent: 0 * infinity would be NaN, in the next derivative too.
  template <class T> TG_HD_INLINE static T dx(T x, T y) {
    return y * math::pow(x, math::select(y == T(0), T(0), y - T(1)));
  }
  /// x^y log(x), 0 for x = 0 where 0^y is finite.
  template <class T> TG_HD_INLINE static T dy(T x, T y) {
    return math::pow(x, y) * math::log(math::select(x == T(0), math::select(y >= T(0), T(1), x), x));
  }
};
/// All functions of two operands.
using BinaryFns = TypeList<Add, Sub, Mul, Div, Maximum, Minimum, Pow>;
/// True if F defines dx() and dy() instead of vjp().
template <class F> inline constexpr bool has_partials = requires { F::kGradName; };
/// Functions with has_partials.
using PartialFns = TypeList<Maximum, Minimum, Pow>;
}  // namespace op

#ifndef TG_FUNCTIONS_ONLY
namespace detail {
/// Text of an Expression: each \@ becomes the name of F in namespace tg.
template <class F> std::string expression_of(std::string_view text) {
  constexpr std::string_view here = __PRETTY_FUNCTION__;  // "... [with F = tg::Gelu; ...]"
  constexpr size_t begin = here.find_first_not_of("= ", here.find('=', here.find('[')));
  constexpr std::string_view name = here.substr(begin, here.find_first_of(";],", begin) - begin);
  std::string s;
  for (const char c : text) c == '@' ? s += name : s += c;
  return s;
}
/// Broadcast layout of two operands with equal dtypes, for the op `name`.
Layouts infer_binary(std::string_view name, Inputs, bool integers);
/// Layout of a tensor and a number, for the op `name`. An Error if the dtype lacks the number.
Layouts infer_scalar(std::string_view name, Inputs, double s, bool integers);
/// Gradients of(i) of two operands that broadcast, where wanted.
template <class F> Tensors of_operands(const Vjp& v, F&& of) {
  const auto one = [&](size_t i) { return v.wants(i) ? sum_to(of(i), v.in_shape(i)) : Tensor(); };
  return {one(0), one(1)};
}
}  // namespace detail

namespace op {

/// (x, y, dz) -> dz times a partial derivative of F(x, y), in dz's shape.
template <class F> struct BinaryGrad : OpOf<BinaryGrad<F>> {
  static constexpr auto kName = F::kGradName;
  bool by_y;
  explicit BinaryGrad(bool second) : by_y(second) {}
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(2)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[2])}; }
  Tensors compose(Inputs in) const override {
    const Sym x(in[0]), y(in[1]);
    return {((by_y ? F::dy(x, y) : F::dx(x, y)) * Sym(in[2])).tensor()};
  }
  void key(StructuralHash& k) const override { k.add(by_y); }
  Expression expression() const override {
    static const std::string dx = detail::expression_of<F>("@::dx($0, $1) * $2"),
                             dy = detail::expression_of<F>("@::dy($0, $1) * $2");
    return {by_y ? dy : dx};
  }
};
/// (x, dz) -> dz times the derivative of F(x, s), or F(s, x) with the number on the left.
template <class F> struct BinaryScalarGrad : OpOf<BinaryScalarGrad<F>> {
  static constexpr auto kName = F::kScalarGradName;
  double s;
  bool left;
  BinaryScalarGrad(double number, bool on_left) : s(number), left(on_left) {}
  Traits traits() const override {
    return {.kind = OpKind::pointwise, .may_alias = mask_of(1), .dynamic_attributes = true};
  }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[1])}; }
  Tensors compose(Inputs in) const override {
    const Sym x(in[0]), number(s);
    return {((left ? F::dy(number, x) : F::dx(x, number)) * Sym(in[1])).tensor()};
  }
  void key(StructuralHash& k) const override { k.add(left); }
  Expression expression() const override {
    static const std::string dx = detail::expression_of<F>("@::dx($0, #0) * $1"),
                             dy = detail::expression_of<F>("@::dy(#0, $0) * $1");
    return {left ? dy : dx, {s}};
  }
};
/// (x, y) -> F(x, y), with broadcasting.
template <class F> struct Binary : OpOf<Binary<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(0, 1)}; }
  Layouts infer(Inputs in) const override { return detail::infer_binary(kName, in, takes_integers<F>); }
  Expression expression() const override {
    static const std::string text = detail::expression_of<F>("@::f($0, $1)");
    return {text};
  }
  Mask saves_in(Mask tracked) const override {
    if constexpr (has_partials<F>)
      return mask_of(0, 1);
    else
      return F::saves(tracked);
  }
  Tensors vjp(const Vjp& v) const override {
    if constexpr (has_partials<F>)
      return detail::of_operands(v, [&](size_t i) {
        return emit1(make_ref<BinaryGrad<F>>(i == 1), {v.in(0), v.in(1), v.grad()});
      });
    else
      return F::vjp(v);
  }
};
/// (x) -> F(x, s), or F(s, x) with the number on the left. Keys omit numbers, which often change per step.
template <class F> struct BinaryScalar : OpOf<BinaryScalar<F>> {
  static constexpr auto kName = F::kScalarName;
  double s;
  bool left;
  BinaryScalar(double number, bool on_left) : s(number), left(on_left) {}
  Traits traits() const override {
    return {.kind = OpKind::pointwise, .may_alias = mask_of(0), .dynamic_attributes = true};
  }
  Layouts infer(Inputs in) const override { return detail::infer_scalar(F::kName, in, s, takes_integers<F>); }
  Expression expression() const override {
    static const std::string right = detail::expression_of<F>("@::f($0, #0)"),
                             on_left = detail::expression_of<F>("@::f(#0, $0)");
    return {left ? on_left : right, {s}};
  }
  Mask saves_in(Mask) const override {
    if constexpr (has_partials<F>)
      return mask_of(0);
    else
      return F::saves_scalar(left);
  }
  Tensors vjp(const Vjp& v) const override {
    if constexpr (has_partials<F>)
      return {emit1(make_ref<BinaryScalarGrad<F>>(s, left), {v.in(0), v.grad()})};
    else
      return {F::vjp_scalar(v, s, left)};
  }
  void key(StructuralHash& k) const override { k.add(left); }
};
}  // namespace op

/// Sum, difference, product or quotient of two tensors of equal dtypes: f64, f32, bf16, i64 or i32 (/: floating
/// dtypes only). Shapes broadcast: aligned at the right, each size must be equal or 1.
/// @{
Tensor operator+(const Tensor& x, const Tensor& y);
Tensor operator-(const Tensor& x, const Tensor& y);
Tensor operator*(const Tensor& x, const Tensor& y);
Tensor operator/(const Tensor& x, const Tensor& y);
/// @}
/// Sum, difference, product or quotient of a tensor and a number, in the tensor's shape and dtype: f64, f32, bf16,
/// i64 or i32 (/: floating dtypes only). The number is converted to that dtype; a fraction for an integer tensor is
/// an Error.
/// @{
Tensor operator+(const Tensor& x, double s);
inline Tensor operator+(double s, const Tensor& x) { return x + s; }
Tensor operator-(const Tensor& x, double s);
Tensor operator-(double s, const Tensor& x);
Tensor operator*(const Tensor& x, double s);
inline Tensor operator*(double s, const Tensor& x) { return x * s; }
Tensor operator/(const Tensor& x, double s);
Tensor operator/(double s, const Tensor& x);
/// @}
/// The larger or the smaller of two elements; NaN if one is NaN. Shapes broadcast; dtypes are equal: f64, f32, bf16,
/// i64 or i32. A number is converted to the tensor's dtype. The chosen element gets the gradient, equal ones half each.
/// @{
Tensor maximum(const Tensor& x, const Tensor& y);
Tensor maximum(const Tensor& x, double s);
Tensor maximum(double s, const Tensor& x);
Tensor minimum(const Tensor& x, const Tensor& y);
Tensor minimum(const Tensor& x, double s);
Tensor minimum(double s, const Tensor& x);
/// @}
/// x^y. Shapes broadcast; dtypes are equal: f64, f32 or bf16. A number is converted to the tensor's dtype. The gradient
/// of x^0 by x is 0, and that of 0^y by y is 0 for y >= 0. A square is x * x, bit for bit.
/// @{
Tensor pow(const Tensor& x, const Tensor& y);
Tensor pow(const Tensor& x, double s);
Tensor pow(double s, const Tensor& x);
/// @}

/// x += y is x = x + y: the handle x gets a new tensor, nothing is written in place. Other handles keep the old tensor,
/// and gradients flow to both. A parameter is then no leaf, so update it by w.assign(w - step).
/// @{
inline Tensor& operator+=(Tensor& x, const Tensor& y) { return x = x + y; }
inline Tensor& operator-=(Tensor& x, const Tensor& y) { return x = x - y; }
inline Tensor& operator*=(Tensor& x, const Tensor& y) { return x = x * y; }
inline Tensor& operator/=(Tensor& x, const Tensor& y) { return x = x / y; }
inline Tensor& operator+=(Tensor& x, double s) { return x = x + s; }
inline Tensor& operator-=(Tensor& x, double s) { return x = x - s; }
inline Tensor& operator*=(Tensor& x, double s) { return x = x * s; }
inline Tensor& operator/=(Tensor& x, double s) { return x = x / s; }
/// @}
#endif

}  // namespace tg
