/// @file
/// Pointwise ops of one operand. A struct per function has value and derivative, for host and device. UnaryFns
/// (BinaryFns in binary.h) is the only list: kernels of every backend, tests and fixtures fold over it.
///
/// A new unary op needs its struct, its name in UnaryFns, its function at the end of this file, and a run of
/// tests/data/make_fixtures.py for PyTorch's values. df branches by math::select, because it is instantiated for Sym
/// (symbolic.h) too, for derivatives of any order. User-defined unary ops need such a struct and TG_UNARY_OP.
#pragma once
#include <tapegrad/ops/binary.h>

namespace tg {
namespace op {

/// Inputs of the derivative: x, the output y, or neither if it is a constant.
struct Saves {
  bool x = false, y = false;
};
/// e^x.
struct Exp {
  static constexpr char kName[] = "exp", kGradName[] = "exp_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::exp(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return y; }
};
/// Natural logarithm.
struct Log {
  static constexpr char kName[] = "log", kGradName[] = "log_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{0.2, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::log(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return T(1) / x; }
};
/// Square root.
struct Sqrt {
  static constexpr char kName[] = "sqrt", kGradName[] = "sqrt_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{0.2, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::sqrt(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return T(0.5) / y; }
};
/// 1 / sqrt(x).
struct Rsqrt {
  static constexpr char kName[] = "rsqrt", kGradName[] = "rsqrt_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{0.2, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::rsqrt(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return T(-0.5) * y * y * y; }
};
/// Sine, x in radians.
struct Sin {
  static constexpr char kName[] = "sin", kGradName[] = "sin_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::sin(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return math::cos(x); }
};
/// Cosine, x in radians.
struct Cos {
  static constexpr char kName[] = "cos", kGradName[] = "cos_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::cos(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return -math::sin(x); }
};
/// Hyperbolic tangent.
struct Tanh {
  static constexpr char kName[] = "tanh", kGradName[] = "tanh_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::tanh(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return T(1) - y * y; }
};
/// 1 / (1 + exp(-x)).
struct Sigmoid {
  static constexpr char kName[] = "sigmoid", kGradName[] = "sigmoid_grad";
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return math::sigmoid(x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return y * (T(1) - y); }
};
/// Error function.
struct Erf {
  static constexpr char kName[] = "erf", kGradName[] = "erf_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::erf(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    return T(1.12837916709551257390) * math::exp(-(x * x));
  }  // 2 / sqrt(pi)
};
/// -x.
struct Neg {
  static constexpr char kName[] = "neg";
  static constexpr bool kIntegers = true;
  static constexpr Saves kSaves{};
  static constexpr Domain kDomain{-2, 2};
  template <class T> TG_HD_INLINE static T f(T x) { return -x; }
  template <class T> TG_HD_INLINE static T df(T, T) { return T(-1); }
};
/// |x|; the derivative at 0 is 0.
struct Abs {
  static constexpr char kName[] = "abs", kGradName[] = "abs_grad";
  static constexpr bool kIntegers = true;
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-3, 3, 1};
  template <class T> TG_HD_INLINE static T f(T x) { return math::abs(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    return math::select(x > T(0), T(1), math::select(x < T(0), T(-1), T(0)));
  }
};
/// Largest integer <= x. The derivative is 0.
struct Floor {
  static constexpr char kName[] = "floor";
  static constexpr Saves kSaves{};
  static constexpr Domain kDomain{-3, 3, 1};
  template <class T> TG_HD_INLINE static T f(T x) { return math::floor(x); }
  template <class T> TG_HD_INLINE static T df(T, T) { return T(0); }
};
/// Nearest integer, ties to even. The derivative is 0.
struct Round {
  static constexpr char kName[] = "round";
  static constexpr Saves kSaves{};
  static constexpr Domain kDomain{-3, 3, 0.5};
  template <class T> TG_HD_INLINE static T f(T x) { return math::round(x); }
  template <class T> TG_HD_INLINE static T df(T, T) { return T(0); }
};
/// 1, -1, or 0 for 0, -0 and NaN. The derivative is 0.
struct Sign {
  static constexpr char kName[] = "sign";
  static constexpr bool kIntegers = true;
  static constexpr Saves kSaves{};
  static constexpr Domain kDomain{-3, 3, 1};
  template <class T> TG_HD_INLINE static T f(T x) {
    return math::select(x > T(0), T(1), math::select(x < T(0), T(-1), T(0)));
  }
  template <class T> TG_HD_INLINE static T df(T, T) { return T(0); }
};
/// log(1 + x), accurate near 0.
struct Log1p {
  static constexpr char kName[] = "log1p", kGradName[] = "log1p_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-0.7, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::log1p(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return T(1) / (T(1) + x); }
};
/// log(1 + e^x), as max(x, 0) + log1p(e^-|x|): nothing overflows, and small results keep their digits.
struct Softplus {
  static constexpr char kName[] = "softplus", kGradName[] = "softplus_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) {
    return math::select(x > T(0), x, T(0)) + math::log1p(math::exp(-math::abs(x)));
  }
  template <class T> TG_HD_INLINE static T df(T x, T) { return math::sigmoid(x); }
};
/// max(x, 0); NaN stays NaN, and the derivative at 0 is 0.
struct Relu {
  static constexpr char kName[] = "relu", kGradName[] = "relu_grad";
  static constexpr bool kIntegers = true;
  static constexpr Saves kSaves{.y = true};
  static constexpr Domain kDomain{-3, 3, 1};
  template <class T> TG_HD_INLINE static T f(T x) { return math::select(x < T(0), T(0), x); }
  template <class T> TG_HD_INLINE static T df(T, T y) { return math::select(y <= T(0), T(0), T(1)); }
};
/// max(x, 0)^2 (So et al., Primer, 2021); NaN stays NaN.
struct ReluSquared {
  static constexpr char kName[] = "relu_squared", kGradName[] = "relu_squared_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-3, 3};
  template <class T> TG_HD_INLINE static T f(T x) { return math::select(x < T(0), T(0), x * x); }
  template <class T> TG_HD_INLINE static T df(T x, T) { return math::select(x < T(0), T(0), T(2) * x); }
};
/// x / sqrt(1 + x^2) (Carlile et al., ISRU, 2017), from 1 / x beyond 1, so that no square overflows.
struct Isru {
  static constexpr char kName[] = "isru", kGradName[] = "isru_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) {
    const T far = T(1) / x, limit = math::select(x < T(0), T(-1), T(1));
    return math::select(math::abs(x) > T(1), limit * math::rsqrt(T(1) + far * far), x * math::rsqrt(T(1) + x * x));
  }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    const T r = math::rsqrt(T(1) + x * x);
    return r * r * r;
  }
};
/// x / (1 + exp(-x)) (Elfwing et al., 2017).
struct Silu {
  static constexpr char kName[] = "silu", kGradName[] = "silu_grad";
  static constexpr Saves kSaves{.x = true};
  static constexpr Domain kDomain{-4, 4};
  template <class T> TG_HD_INLINE static T f(T x) { return x * math::sigmoid(x); }
  template <class T> TG_HD_INLINE static T df(T x, T) {
    const T s = math::sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
/// x P(X <= x) with X ~ N(0, 1) (Hendrycks & Gimpel 2016).
struct Gelu {
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
  /// Float cdf() and df(), with one polynomial p and one power of two each, at -|x|, where results go to 0: P(X <=
  /// -|x|) is 2^(|x| p(|x|) - 1), the derivative e^(-x^2 / 2) p(|x|). Errors: f 1.6e-7 of the result for x >= 0, 4.2e-8
  /// below; df 1.2e-7.
  /// @{
  TG_HD_INLINE static float cdf(float x) {
    const float a = math::abs(x) > 14.0f ? 14.0f : math::abs(x), z = a * a;  // the tail is 0 beyond 14
    const float even =
        math::detail::poly<false>(z, -1.1511050462722778f, -0.052473023533821106f, -4.836105654248968e-05f,
                                  6.837145338067785e-05f, 7.117091058717051e-07f);
    const float odd = math::detail::poly<false>(z, -0.4592118263244629f, 0.006999966222792864f, -0.0002540208224672824f,
                                                -9.479376785748173e-06f, -2.2806450061807482e-08f);
    const float tail = power_of_two<126>(a * (odd * a + even));
    return x < 0.0f ? tail : 1.0f - tail;
  }
  TG_HD_INLINE static float df(float x, float) {
    const float a = math::abs(x) > 14.0f ? 14.0f : math::abs(x);
    const float p = math::detail::poly<false>(a, 0.5f, -0.7978840470314026f, 0.249989315867424f, -0.13290353119373322f,
                                              0.0622205026447773f, -0.026001030579209328f, 0.00959880743175745f,
                                              -0.0030277397017925978f, 0.00077772606164217f, -0.00015419023111462593f,
                                              2.2260746845859103e-05f, -2.174403107346734e-06f, 1.2737815779928496e-07f,
                                              -3.3600802140654196e-09f);
    // Adds 0 x: NaN at infinities, like the formula.
    const float tail = power_of_two<127>(a * a * -0.72134752f + 0.0f * x) * p;
    return x < 0.0f ? tail : 1.0f - tail;
  }
  /// @}

 private:
  // 2^(x + kBias - 127), 0 for x <= -kBias; x < 1. The low bits of the sum n become the exponent.
  template <int kBias> TG_HD_INLINE static float power_of_two(float x) {
    constexpr float kMagic = 0x1.8p23f + kBias;
    x = x < -float(kBias) ? -float(kBias) : x;
    const float n = x + kMagic, r = x - (n - kMagic);
    return math::detail::poly<false>(r, 1.0f, 0.6931471824645996f, 0.24022647738456726f, 0.055503323674201965f,
                                     0.009618440642952919f, 0.0013398866867646575f, 0.00015352525224443525f) *
           math::detail::float_of(math::detail::bits_of(n) << 23);
  }
};
/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the approximation in GELU's paper.
struct GeluTanh {
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
/// tapegrad's unary functions.
using UnaryFns = TypeList<Exp, Log, Log1p, Sqrt, Rsqrt, Sin, Cos, Tanh, Sigmoid, Softplus, Erf, Neg, Abs, Sign, Floor,
                          Round, Relu, ReluSquared, Isru, Silu, Gelu, GeluTanh>;
}  // namespace op

#ifndef TG_FUNCTIONS_ONLY
namespace op {

/// True if F is in a TypeList.
/// @{
template <class F, class List> inline constexpr bool is_listed = false;
template <class F, class... G> inline constexpr bool is_listed<F, TypeList<G...>> = (std::is_same_v<F, G> || ...);
/// @}
/// True if the derivative is a constant.
template <class F> inline constexpr bool is_linear = !F::kSaves.x && !F::kSaves.y;
/// dy times a constant; 0 times any dy is 0.
Tensor times_slope(const Tensor& dy, double slope);
/// (saved..., dy) -> dx in one pass; saved is x, y or both, in this order.
template <class F> struct UnaryGrad : OpOf<UnaryGrad<F>> {
  static constexpr auto kName = F::kGradName;
  static constexpr size_t kDy = size_t(F::kSaves.x) + size_t(F::kSaves.y);
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(kDy)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Expression expression() const override {
    if (!is_listed<F, UnaryFns>) return {};  // run-time compilation does not know F
    static const std::string text = detail::expression_of<F>(kDy == 2 ? "@::df($0, $1) * $2" : "@::df($0, $0) * $1");
    return {text};
  }
  Tensors compose(Inputs in) const override { return {(F::df(Sym(in[0]), Sym(in[kDy - 1])) * Sym(in[kDy])).tensor()}; }
};
/// (x) -> F(x).
template <class F> struct Unary : OpOf<Unary<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(0)}; }
  Layouts infer(Inputs in) const override {
    takes_integers<F> ? check::number(kName, in[0]) : check::computes(kName, in[0]);
    return {contiguous_like(in[0])};
  }
  Expression expression() const override {
    if (!is_listed<F, UnaryFns>) return {};
    static const std::string text = detail::expression_of<F>("@::f($0)");
    return {text};
  }
  Mask saves_in(Mask) const override { return F::kSaves.x; }
  Mask saves_out(Mask) const override { return F::kSaves.y; }
  Tensors vjp(const Vjp& v) const override {
    if constexpr (is_linear<F>) {
      return {times_slope(v.grad(), F::df(0.0, 0.0))};
    } else {
      const OpPtr& grad = stateless<UnaryGrad<F>>();
      if constexpr (F::kSaves.x && F::kSaves.y)
        return {emit1(grad, {v.in(0), v.out(0), v.grad()})};
      else if constexpr (F::kSaves.x)
        return {emit1(grad, {v.in(0), v.grad()})};
      else
        return {emit1(grad, {v.out(0), v.grad()})};
    }
  }
};
/// F(x) as an op, instantiated for UnaryFns in pointwise.cpp.
/// @{
template <class F> Tensor unary(const Tensor& x);
template <class F>
  requires(!is_listed<F, UnaryFns>)
Tensor unary(const Tensor& x) {
  return emit1(stateless<Unary<F>>(), {x});
}
/// @}
}  // namespace op

/// Registers the kernels of a user-defined function and its gradient on a backend, at namespace scope:
/// `TG_UNARY_OP(mine::Softsign, cpu);` in a .cpp file that includes <tapegrad/cpu/unary.h>,
/// `TG_UNARY_OP(mine::Softsign, cuda);` in a .cu file that includes <tapegrad/cuda/unary.h>. The function is a struct
/// as above, without kDomain, in a header and a named namespace; `tg::op::unary<mine::Softsign>(x)` emits its op.
#define TG_UNARY_OP(F, backend)                                                                          \
  static constexpr ::tg::KernelOrigin TG_CAT(kOrigin, __LINE__){__FILE__, __LINE__, TG_ISA_LEVEL, true}; \
  [[maybe_unused]] static const bool TG_CAT(unary_, __LINE__) = ::tg::backend::add_unary<F>(TG_CAT(kOrigin, __LINE__))

/// Elementwise functions of a tensor, in its shape and dtype: f64, f32 or bf16; -, abs, sign and relu also take i64
/// and i32. Definitions: op::Log1p, op::Rsqrt, op::Softplus,
/// op::Silu, op::Gelu and op::GeluTanh. round() rounds ties to even. NaN gives NaN, except
/// sign(NaN) = 0. The derivatives of floor, round and sign are 0, and those of abs and relu at 0. sin and cos of f32
/// are NaN from |x| = 2^29 up. PyTorch's softplus is x above 20, which is off by 2e-9 at most.
/// @{
inline Tensor exp(const Tensor& x) { return op::unary<op::Exp>(x); }
inline Tensor log(const Tensor& x) { return op::unary<op::Log>(x); }
inline Tensor log1p(const Tensor& x) { return op::unary<op::Log1p>(x); }
inline Tensor sqrt(const Tensor& x) { return op::unary<op::Sqrt>(x); }
inline Tensor rsqrt(const Tensor& x) { return op::unary<op::Rsqrt>(x); }
inline Tensor sin(const Tensor& x) { return op::unary<op::Sin>(x); }
inline Tensor cos(const Tensor& x) { return op::unary<op::Cos>(x); }
inline Tensor tanh(const Tensor& x) { return op::unary<op::Tanh>(x); }
inline Tensor sigmoid(const Tensor& x) { return op::unary<op::Sigmoid>(x); }
inline Tensor softplus(const Tensor& x) { return op::unary<op::Softplus>(x); }
inline Tensor erf(const Tensor& x) { return op::unary<op::Erf>(x); }
inline Tensor abs(const Tensor& x) { return op::unary<op::Abs>(x); }
inline Tensor sign(const Tensor& x) { return op::unary<op::Sign>(x); }
inline Tensor floor(const Tensor& x) { return op::unary<op::Floor>(x); }
inline Tensor round(const Tensor& x) { return op::unary<op::Round>(x); }
inline Tensor relu(const Tensor& x) { return op::unary<op::Relu>(x); }
inline Tensor silu(const Tensor& x) { return op::unary<op::Silu>(x); }
inline Tensor gelu(const Tensor& x) { return op::unary<op::Gelu>(x); }
inline Tensor gelu_tanh(const Tensor& x) { return op::unary<op::GeluTanh>(x); }
inline Tensor operator-(const Tensor& x) { return op::unary<op::Neg>(x); }
/// @}
#endif

}  // namespace tg
