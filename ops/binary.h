/// @file
/// Pointwise ops of two operands, tensors that broadcast or a tensor and a number. As in pointwise.h, one struct per
/// function is the only source: BinaryFns is the list over which kernels and tests fold. Comparisons, where and clamp
/// are in comparison.h.
/// Kernels that are compiled at run time read the functions of these three headers, and nothing else of them:
/// TG_FUNCTIONS_ONLY (cuda/jit/chain_kernel.h).
#pragma once
#include <tapegrad/core/math.h>
#ifndef TG_FUNCTIONS_ONLY
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/symbolic.h>
#endif

namespace tg {
namespace op {

template <class... T> struct TypeList {};
/// Where tests sample the input. Kinks lie at multiples of `cell`: samples keep a fifth of it away from them, and two
/// operands a tenth from each other.
struct Domain {
  double lo, hi, cell = 0;
};
/// Functions take f64, f32 and bf16; those that declare kIntegers i64 and i32 too.
template <class F> inline constexpr bool takes_integers = requires { F::kIntegers; };

/// The second name is that of the op with a number on one side. Some
/// have a vjp made of other ops; the rest state their partial derivatives dx and dy, and gradient ops are made of them.
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
struct Div {
  static constexpr char kName[] = "div", kScalarName[] = "div_scalar";
  static constexpr Domain kDomain{0.5, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x / y; }
  static Mask saves(Mask tracked) { return tracked & 2 ? bits(0, 1) : bits(1); }
  static Mask saves_scalar(bool left) { return left; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
/// equal values share the gradient; NaN wins
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
/// x^0 = 1, also of 0 and NaN
struct Pow {
  static constexpr char kName[] = "pow", kScalarName[] = "pow_scalar";
  static constexpr char kGradName[] = "pow_grad", kScalarGradName[] = "pow_scalar_grad";
  static constexpr Domain kDomain{0.5, 2};
  template <class T> TG_HD_INLINE static T f(T x, T y) { return math::pow(x, y); }
  /// y x^(y-1), and 0 for y = 0 whatever x is. The exponent is chosen and not the result: 0 * infinity would be NaN,
  /// here and in the next derivative.
  template <class T> TG_HD_INLINE static T dx(T x, T y) {
    return y * math::pow(x, math::select(y == T(0), T(0), y - T(1)));
  }
  /// x^y log(x), and 0 for x = 0 where 0^y is not infinite.
  template <class T> TG_HD_INLINE static T dy(T x, T y) {
    return math::pow(x, y) * math::log(math::select(x == T(0), math::select(y >= T(0), T(1), x), x));
  }
};
using BinaryFns = TypeList<Add, Sub, Mul, Div, Maximum, Minimum, Pow>;
template <class F> inline constexpr bool has_partials = requires { F::kGradName; };
}  // namespace op

#ifndef TG_FUNCTIONS_ONLY
/// The text of an Expression: '@' stands for F, by the name that it has in namespace tg.
template <class F> std::string expression_of(std::string_view text) {
  constexpr std::string_view here = __PRETTY_FUNCTION__;  // "... [with F = tg::Gelu; ...]"
  constexpr size_t begin = here.find_first_not_of("= ", here.find('=', here.find('[')));
  constexpr std::string_view name = here.substr(begin, here.find_first_of(";],", begin) - begin);
  std::string s;
  for (const char c : text) c == '@' ? s += name : s += c;
  return s;
}

Layouts infer_binary(std::string_view name, Inputs, bool integers);
Layouts infer_scalar(std::string_view name, Inputs, double s, bool integers);
namespace op {

/// (x, y, dz) -> dz times the partial derivative of F(x, y), in the shape of dz.
template <class F> struct BinaryGrad : OpOf<BinaryGrad<F>> {
  static constexpr auto kName = F::kGradName;
  bool by_y;
  explicit BinaryGrad(bool second) : by_y(second) {}
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = bit(2)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[2])}; }
  Tensors compose(Inputs in) const override {
    const Sym x(in[0]), y(in[1]);
    return {((by_y ? F::dy(x, y) : F::dx(x, y)) * Sym(in[2])).tensor()};
  }
  void key(StructuralHash& k) const override { k.add(by_y); }
  Expression expression() const override {
    static const std::string dx = expression_of<F>("@::dx($0, $1) * $2"), dy = expression_of<F>("@::dy($0, $1) * $2");
    return {by_y ? dy : dx};
  }
};
/// The same with a number: (x, dz), of F(x, s), or of F(s, x) when the number is on the left.
template <class F> struct BinaryScalarGrad : OpOf<BinaryScalarGrad<F>> {
  static constexpr auto kName = F::kScalarGradName;
  double s;
  bool left;
  BinaryScalarGrad(double number, bool on_left) : s(number), left(on_left) {}
  Traits traits() const override {
    return {.kind = OpKind::pointwise, .may_alias = bit(1), .dynamic_attributes = true};
  }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[1])}; }
  Tensors compose(Inputs in) const override {
    const Sym x(in[0]), number(s);
    return {((left ? F::dy(number, x) : F::dx(x, number)) * Sym(in[1])).tensor()};
  }
  void key(StructuralHash& k) const override { k.add(left); }
  Expression expression() const override {
    static const std::string dx = expression_of<F>("@::dx($0, #0) * $1"), dy = expression_of<F>("@::dy(#0, $0) * $1");
    return {left ? dy : dx, {s}};
  }
};
template <class F> struct Binary : OpOf<Binary<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = bits(0, 1)}; }
  Layouts infer(Inputs in) const override { return infer_binary(kName, in, takes_integers<F>); }
  Expression expression() const override {
    static const std::string text = expression_of<F>("@::f($0, $1)");
    return {text};
  }
  Mask saves_in(Mask tracked) const override {
    if constexpr (has_partials<F>)
      return bits(0, 1);
    else
      return F::saves(tracked);
  }
  Tensors vjp(const Vjp& v) const override {
    if constexpr (has_partials<F>) {
      const auto grad = [&](size_t i) {
        return v.wants(i) ? sum_to(emit1(make_ref<BinaryGrad<F>>(i == 1), {v.in(0), v.in(1), v.grad()}), v.in_shape(i))
                          : Tensor();
      };
      return {grad(0), grad(1)};
    } else {
      return F::vjp(v);
    }
  }
};
/// F(x, s), or F(s, x) when the number is on the left. Numbers often change from step to step: not in the key.
template <class F> struct BinaryScalar : OpOf<BinaryScalar<F>> {
  static constexpr auto kName = F::kScalarName;
  double s;
  bool left;
  BinaryScalar(double number, bool on_left) : s(number), left(on_left) {}
  Traits traits() const override {
    return {.kind = OpKind::pointwise, .may_alias = bits(0), .dynamic_attributes = true};
  }
  Layouts infer(Inputs in) const override { return infer_scalar(F::kName, in, s, takes_integers<F>); }
  Expression expression() const override {
    static const std::string right = expression_of<F>("@::f($0, #0)"), on_left = expression_of<F>("@::f(#0, $0)");
    return {left ? on_left : right, {s}};
  }
  Mask saves_in(Mask) const override {
    if constexpr (has_partials<F>)
      return bits(0);
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

/// x op y with broadcasting: aligned at the right, each size must be equal or 1. Equal dtypes: f64, f32, bf16, i64, i32
/// (div and pow: floating only). A number is taken in the dtype of the tensor.
inline Tensor add(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Add>>(), {x, y}); }
inline Tensor sub(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Sub>>(), {x, y}); }
inline Tensor mul(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Mul>>(), {x, y}); }
inline Tensor div(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Div>>(), {x, y}); }
/// The same with a number, which takes the tensor's dtype; an Error when an integer tensor meets a fraction.
inline Tensor add(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Add>>(s, false), {x}); }
inline Tensor sub(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Sub>>(s, false), {x}); }
inline Tensor sub(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Sub>>(s, true), {x}); }
inline Tensor mul(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Mul>>(s, false), {x}); }
inline Tensor div(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Div>>(s, false), {x}); }
inline Tensor div(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Div>>(s, true), {x}); }
/// The larger, the smaller; NaN where either is NaN. The gradient goes to the one chosen, half to each of two equals.
inline Tensor maximum(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Maximum>>(), {x, y}); }
inline Tensor maximum(const Tensor& x, double s) {
  return emit1(make_ref<op::BinaryScalar<op::Maximum>>(s, false), {x});
}
inline Tensor maximum(double s, const Tensor& x) {
  return emit1(make_ref<op::BinaryScalar<op::Maximum>>(s, true), {x});
}
inline Tensor minimum(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Minimum>>(), {x, y}); }
inline Tensor minimum(const Tensor& x, double s) {
  return emit1(make_ref<op::BinaryScalar<op::Minimum>>(s, false), {x});
}
inline Tensor minimum(double s, const Tensor& x) {
  return emit1(make_ref<op::BinaryScalar<op::Minimum>>(s, true), {x});
}
/// x^y. The gradient of x^0 by x is 0, that of 0^y by y is 0 for y >= 0. A square is x * x, to the bit.
inline Tensor pow(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Pow>>(), {x, y}); }
inline Tensor pow(const Tensor& x, double s) {
  return s == 2 ? mul(x, x) : emit1(make_ref<op::BinaryScalar<op::Pow>>(s, false), {x});
}
inline Tensor pow(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Pow>>(s, true), {x}); }

inline Tensor operator+(const Tensor& x, const Tensor& y) { return add(x, y); }
inline Tensor operator-(const Tensor& x, const Tensor& y) { return sub(x, y); }
inline Tensor operator*(const Tensor& x, const Tensor& y) { return mul(x, y); }
inline Tensor operator/(const Tensor& x, const Tensor& y) { return div(x, y); }
inline Tensor operator+(const Tensor& x, double s) { return add(x, s); }
inline Tensor operator+(double s, const Tensor& x) { return add(x, s); }
inline Tensor operator-(const Tensor& x, double s) { return sub(x, s); }
inline Tensor operator-(double s, const Tensor& x) { return sub(s, x); }
inline Tensor operator*(const Tensor& x, double s) { return mul(x, s); }
inline Tensor operator*(double s, const Tensor& x) { return mul(x, s); }
inline Tensor operator/(const Tensor& x, double s) { return div(x, s); }
inline Tensor operator/(double s, const Tensor& x) { return div(s, x); }
#endif

}  // namespace tg
