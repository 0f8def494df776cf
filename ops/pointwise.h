// Pointwise ops. One struct per function, value and derivative side by side, shared by host and device; the type lists
// UnaryFns and BinaryFns are the only lists: kernels of every backend, tests and fixtures fold over them.
// To add a unary op, add its struct, its name to UnaryFns and its function at the end of this file. Nothing else
// changes.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/ops/check.h>

namespace tg {

template <class... T> struct TypeList {};
struct Saves {  // what the derivative reads: the input, the output
  bool x = false, y = false;
};
struct Domain {  // where tests sample the input
  double lo, hi;
};

struct Exp {
  static constexpr char kName[] = "exp", kGradName[] = "exp_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::exp(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return y; }
};
struct Tanh {
  static constexpr char kName[] = "tanh", kGradName[] = "tanh_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::tanh(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return T(1) - y * y; }
};
struct Silu {  // x / (1 + exp(-x)): Elfwing et al. 2017
  static constexpr char kName[] = "silu", kGradName[] = "silu_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return x * math::sigmoid(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    const T s = math::sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
struct Gelu {  // x P(X <= x) with X ~ N(0, 1): Hendrycks & Gimpel 2016
  static constexpr char kName[] = "gelu", kGradName[] = "gelu_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T cdf(T x) {
    return T(0.5) * (T(1) + math::erf(x * T(0.70710678118654752440)));
  }
  template <class T> TG_HD_INLINE static T f(T x) { return x * cdf(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    return cdf(x) + x * T(0.39894228040143267794) * math::exp(T(-0.5) * x * x);
  }
};
struct GeluTanh {  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the approximation of the same paper
  static constexpr char kName[] = "gelu_tanh", kGradName[] = "gelu_tanh_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T inner(T x) {
    return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  }
  template <class T> TG_HD_INLINE static T f(T x) { return T(0.5) * x * (T(1) + math::tanh(inner(x))); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    const T t = math::tanh(inner(x)), du = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du;
  }
};
using UnaryFns = TypeList<Exp, Tanh, Silu, Gelu, GeluTanh>;

// (saved..., dy) -> dx in one pass; saved is x, y or both, in this order.
template <class F> struct UnaryGrad : OpOf<UnaryGrad<F>> {
  static constexpr auto kName = F::kGradName;
  static constexpr size_t kDy = size_t(F::kSaves.x) + size_t(F::kSaves.y);
  Traits traits() const override { return {.kind = Kind::pointwise, .may_alias = bit(kDy)}; }
  Layouts infer(Inputs in) const override { return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())}; }
};
template <class F> struct Unary : OpOf<Unary<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = Kind::pointwise, .may_alias = bits(0)}; }
  Layouts infer(Inputs in) const override {
    check::computes(kName, in[0]);
    return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())};
  }
  Mask saves_in(Mask) const override { return F::kSaves.x; }
  Mask saves_out(Mask) const override { return F::kSaves.y; }
  Tensors vjp(const Vjp& v) const override {
    static_assert(F::kSaves.x || F::kSaves.y, "a derivative that reads nothing is a constant: compose it");
    const OpPtr& grad = stateless<UnaryGrad<F>>();
    if constexpr (F::kSaves.x && F::kSaves.y)
      return {emit1(grad, {v.in(0), v.out(0), v.grad()})};
    else if constexpr (F::kSaves.x)
      return {emit1(grad, {v.in(0), v.grad()})};
    else
      return {emit1(grad, {v.out(0), v.grad()})};
  }
};

// Binary functions broadcast, aligned at the right. The second name is that of the op with a number on one side.
struct Add {
  static constexpr char kName[] = "add", kScalarName[] = "add_scalar";
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x + y; }
  static Mask saves(Mask) { return 0; }
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
struct Sub {
  static constexpr char kName[] = "sub", kScalarName[] = "sub_scalar";
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x - y; }
  static Mask saves(Mask) { return 0; }
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
struct Mul {
  static constexpr char kName[] = "mul", kScalarName[] = "mul_scalar";
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x * y; }
  static Mask saves(Mask tracked) { return (tracked & 1) << 1 | (tracked & 2) >> 1; }  // x for dy, y for dx
  static Mask saves_scalar(bool) { return 0; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
struct Div {  // floating dtypes only
  static constexpr char kName[] = "div", kScalarName[] = "div_scalar";
  template <class T> TG_HD_INLINE static T f(T x, T y) { return x / y; }
  static Mask saves(Mask tracked) { return tracked & 2 ? bits(0, 1) : bits(1); }
  static Mask saves_scalar(bool left) { return left; }
  static Tensors vjp(const Vjp&);
  static Tensor vjp_scalar(const Vjp&, double s, bool left);
};
using BinaryFns = TypeList<Add, Sub, Mul, Div>;

Layouts infer_binary(std::string_view name, Inputs, bool floats_only);
Layouts infer_scalar(std::string_view name, Inputs, double s, bool floats_only);
template <class F> struct Binary : OpOf<Binary<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = Kind::pointwise, .may_alias = bits(0, 1)}; }
  Layouts infer(Inputs in) const override { return infer_binary(kName, in, std::is_same_v<F, Div>); }
  Mask saves_in(Mask tracked) const override { return F::saves(tracked); }
  Tensors vjp(const Vjp& v) const override { return F::vjp(v); }
};
// F(x, s), or F(s, x) when the number is on the left. Numbers often change from step to step: not in the key.
template <class F> struct BinaryScalar : OpOf<BinaryScalar<F>> {
  static constexpr auto kName = F::kScalarName;
  double s;
  bool left;
  BinaryScalar(double number, bool on_left) : s(number), left(on_left) {}
  Traits traits() const override { return {.kind = Kind::pointwise, .may_alias = bits(0)}; }
  Layouts infer(Inputs in) const override { return infer_scalar(F::kName, in, s, std::is_same_v<F, Div>); }
  Mask saves_in(Mask) const override { return F::saves_scalar(left); }
  Tensors vjp(const Vjp& v) const override { return {F::vjp_scalar(v, s, left)}; }
  void key(Key& k) const override { k.add(left); }
};

// Elementwise functions of a tensor of any shape; the result has its shape and dtype (f64, f32 or bf16).
inline Tensor exp(const Tensor& x) { return emit1(stateless<Unary<Exp>>(), {x}); }
inline Tensor tanh(const Tensor& x) { return emit1(stateless<Unary<Tanh>>(), {x}); }
inline Tensor silu(const Tensor& x) { return emit1(stateless<Unary<Silu>>(), {x}); }
inline Tensor gelu(const Tensor& x) { return emit1(stateless<Unary<Gelu>>(), {x}); }
inline Tensor gelu_tanh(const Tensor& x) { return emit1(stateless<Unary<GeluTanh>>(), {x}); }

// x op y with broadcasting: aligned at the right, each size must be equal or 1. Equal dtypes: f64, f32, bf16, i64, i32
// (div: floating only).
inline Tensor add(const Tensor& x, const Tensor& y) { return emit1(stateless<Binary<Add>>(), {x, y}); }
inline Tensor sub(const Tensor& x, const Tensor& y) { return emit1(stateless<Binary<Sub>>(), {x, y}); }
inline Tensor mul(const Tensor& x, const Tensor& y) { return emit1(stateless<Binary<Mul>>(), {x, y}); }
inline Tensor div(const Tensor& x, const Tensor& y) { return emit1(stateless<Binary<Div>>(), {x, y}); }
// The same with a number, which takes the tensor's dtype; an Error when an integer tensor meets a fraction.
inline Tensor add(const Tensor& x, double s) { return emit1(make<BinaryScalar<Add>>(s, false), {x}); }
inline Tensor sub(const Tensor& x, double s) { return emit1(make<BinaryScalar<Sub>>(s, false), {x}); }
inline Tensor sub(double s, const Tensor& x) { return emit1(make<BinaryScalar<Sub>>(s, true), {x}); }
inline Tensor mul(const Tensor& x, double s) { return emit1(make<BinaryScalar<Mul>>(s, false), {x}); }
inline Tensor div(const Tensor& x, double s) { return emit1(make<BinaryScalar<Div>>(s, false), {x}); }
inline Tensor div(double s, const Tensor& x) { return emit1(make<BinaryScalar<Div>>(s, true), {x}); }

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
inline Tensor operator-(const Tensor& x) { return mul(x, -1.0); }

}  // namespace tg
